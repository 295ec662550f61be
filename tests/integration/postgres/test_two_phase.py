"""Prepared participants on a real server: each is committed once, and what is gone is settled with evidence."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from exactsink.contract import Committable, Fatal, Lost, Retryable, Unknown
from exactsink_postgres.prepared import finish, list_prepared
from tests.integration.postgres.branches import Branches, kinds, rows, voted, xid_of

pytest_plugins = ["tests.servers.fixtures", "tests.integration.postgres.two_phase_fixtures"]


def test_rows_are_seen_from_the_commit_on_and_a_repeat_changes_nothing(branches: Branches) -> None:
    branches.table()
    epoch = [branches.prepare(0, 1, 2), branches.prepare(1, 3)]

    assert branches.ids() == []
    assert [c.rows for c in epoch] == [2, 1]
    assert branches.commit(epoch) == ["Committed", "Committed"]
    assert branches.commit(epoch) == ["AlreadyCommitted", "AlreadyCommitted"]
    assert branches.ids() == [1, 2, 3]
    assert branches.prepared() == []


def test_outcomes_come_in_the_order_of_the_committables_and_one_that_is_gone_stops_no_other(branches: Branches) -> None:
    branches.table()
    epoch = [branches.prepare(n, n) for n in range(6)]
    branches.end("ROLLBACK", epoch[1].txn.id)
    branches.end("COMMIT", epoch[3].txn.id)

    outcomes = branches.outcomes([epoch[n] for n in (4, 1, 0, 3, 5, 2)])

    assert kinds(outcomes) == ["Committed", "Lost", "Committed", "AlreadyCommitted", "Committed", "Committed"]
    assert branches.ids() == [0, 2, 3, 4, 5]
    lost = outcomes[1]
    assert isinstance(lost, Lost)
    for reported in (epoch[1].txn.id, str(xid_of(epoch[1])), "'aborted'"):
        assert reported in lost.evidence


def test_one_that_is_ended_between_listing_and_commit_stops_no_other(branches: Branches) -> None:
    branches.table()
    epoch = [branches.prepare(n, n) for n in range(5)]
    with psycopg.connect(branches.conninfo, autocommit=True) as session:
        listed = list_prepared(session, [c.txn.id for c in epoch])
        branches.end("COMMIT", epoch[1].txn.id, epoch[3].txn.id)
        done = finish(session, "COMMIT", listed.values(), "commit")
    assert done == {epoch[n].txn.id for n in (0, 2, 4)}
    assert branches.ids() == [0, 1, 2, 3, 4]


def test_a_server_that_takes_no_two_in_one_pipeline_gets_them_one_by_one(branches: Branches) -> None:
    branches.table()
    epoch = [branches.prepare(n, n) for n in range(3)]
    with _Strict.connect(branches.conninfo, autocommit=True) as session:
        gids = [c.txn.id for c in epoch]
        assert finish(session, "COMMIT", list_prepared(session, gids).values(), "commit") == set(gids)
    assert branches.ids() == [0, 1, 2]


class _Strict(psycopg.Connection):
    """The server refuses COMMIT PREPARED in a pipeline in which another statement was before it."""

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        with super().pipeline() as pipeline:
            self.execute("SELECT 1")
            yield pipeline


def test_evidence_of_another_database_or_timeline_is_no_evidence(branches: Branches) -> None:
    branches.table()
    there, gone = branches.prepare(0, 1), branches.prepare(1, 2)
    branches.end("COMMIT", gone.txn.id)

    cases = {"system": "1234567", "database": 77, "timeline": 99}
    for name, value in cases.items():
        [outcome] = branches.outcomes([voted(gone, **{name: value})])
        assert isinstance(outcome, Unknown), name
        for reported in (gone.txn.id, str(xid_of(gone)), f"{name} {value}", f"{name} "):
            assert reported in outcome.evidence
    assert branches.commit([voted(there, timeline=99)]) == ["Committed"]  # what stands prepared needs no evidence


def test_an_id_that_the_server_does_not_know_or_not_yet_is_in_doubt(branches: Branches) -> None:
    branches.table()
    epoch = branches.prepare(0, 1)
    branches.end("COMMIT", epoch.txn.id)

    forgotten, future = branches.outcomes([voted(epoch, xid=3), voted(epoch, xid=xid_of(epoch) + 1_000_000_000)])

    assert isinstance(forgotten, Unknown)
    assert isinstance(future, Unknown)
    assert "pg_xact_status(3) = NULL" in forgotten.evidence
    assert "22023" in future.evidence
    assert str(xid_of(epoch) + 1_000_000_000) in future.evidence
    assert epoch.txn.id in forgotten.evidence
    assert epoch.txn.id in future.evidence


def test_one_that_is_neither_prepared_nor_ended_is_asked_for_again(branches: Branches) -> None:
    branches.table()
    epoch = branches.prepare(0, 1)
    branches.end("COMMIT", epoch.txn.id)
    with psycopg.connect(branches.conninfo) as session:
        row = session.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        with pytest.raises(Retryable, match="'in progress'"):
            branches.outcomes([voted(epoch, xid=int(row[0]))])


def test_another_transaction_of_the_same_name_is_not_committed(branches: Branches) -> None:
    branches.table()
    epoch = branches.prepare(0, 1)
    [outcome] = branches.outcomes([voted(epoch, xid=xid_of(epoch) + 1)])
    assert isinstance(outcome, Unknown)
    assert str(xid_of(epoch)) in outcome.evidence
    assert str(xid_of(epoch) + 1) in outcome.evidence
    assert branches.prepared() == [epoch.txn.id]
    assert branches.commit([voted(epoch, xid=xid_of(epoch) + (5 << 32))]) == ["Committed"]  # it lists 32 bits


def test_one_that_another_session_is_ending_is_asked_for_again_and_the_others_are_committed(branches: Branches) -> None:
    branches.table()
    epoch = [branches.prepare(n, n) for n in range(3)]
    with psycopg.connect(branches.conninfo, autocommit=True) as session:
        listed = list_prepared(session, [c.txn.id for c in epoch])
    with (
        _Busy.connect(branches.conninfo, autocommit=True) as session,
        pytest.raises(Retryable, match=f"{epoch[0].txn.id}.*stays"),
    ):
        finish(session, "COMMIT", [listed[c.txn.id] for c in epoch], "commit")
    assert branches.ids() == [1, 2]
    assert branches.commit(epoch) == ["Committed", "AlreadyCommitted", "AlreadyCommitted"]


class _Busy(psycopg.Connection):
    """The server answers busy to the first COMMIT PREPARED."""

    busy = True

    def execute(self, query, *args, **given):  # type: ignore[no-untyped-def]
        if b"COMMIT PREPARED" in _text(query, self) and self.busy:
            self.busy = False
            query = "DO $$ BEGIN RAISE EXCEPTION 'busy' USING ERRCODE = '55000'; END $$"
        return super().execute(query, *args, **given)


def _text(query: object, session: psycopg.Connection) -> bytes:
    return query.as_bytes(session) if isinstance(query, psycopg.sql.Composable) else str(query).encode()


def test_a_vote_of_a_later_release_is_refused(branches: Branches) -> None:
    branches.table()
    epoch = branches.prepare(0, 1)
    with pytest.raises(Fatal, match="version 2"):
        branches.outcomes([replace(epoch, version=2)])
    assert branches.prepared() == [epoch.txn.id]


def test_only_its_owner_may_commit_and_the_others_are_committed_all_the_same(branches: Branches) -> None:
    branches.table()
    theirs = _as(branches, "owner")
    mine = _as(branches, "other")
    epoch = [theirs.prepare(0, 1), mine.prepare(1, 2)]

    with pytest.raises(Fatal, match=f"{epoch[0].txn.id}.*role {branches.job}-owner prepared it"):
        mine.commit(epoch)
    assert branches.ids() == [2]
    with pytest.raises(Fatal, match=f"role {branches.job}-owner prepared it"):
        mine.sweep()
    assert theirs.commit(epoch) == ["Committed", "AlreadyCommitted"]


def _as(branches: Branches, name: str) -> Branches:
    role = f'"{branches.job}-{name}"'
    branches.run(f"CREATE ROLE {role} LOGIN", f'GRANT SELECT, INSERT ON "{branches.job}" TO {role}')
    return replace(branches, conninfo=branches.conninfo.replace("user=postgres", f"user={branches.job}-{name}"))


def test_two_processes_that_commit_at_the_same_moment_commit_each_row_once(branches: Branches) -> None:
    branches.table()
    epoch = [branches.prepare(n, n) for n in range(12)]
    forks = multiprocessing.get_context("spawn")
    start, answers = forks.Barrier(3), forks.Queue()
    drivers = [forks.Process(target=_commit, args=(branches, epoch, start, answers)) for _ in range(3)]
    for driver in drivers:
        driver.start()
    reported = [answers.get(timeout=60) for _ in drivers]
    for driver in drivers:
        driver.join()

    assert {kind for outcomes in reported for kind in outcomes} <= {"Committed", "AlreadyCommitted"}
    by_participant = list(zip(*reported, strict=True))
    assert all(outcomes.count("Committed") <= 1 for outcomes in by_participant)
    assert branches.ids() == list(range(12))


def _commit(branches: Branches, epoch: list[Committable], start, answers) -> None:  # type: ignore[no-untyped-def]
    committer = branches.committer()
    list(committer.in_doubt())
    start.wait()
    while True:
        try:
            answers.put(kinds(committer.commit(0, epoch)))
            return
        except Retryable:
            continue


def test_a_session_that_died_idle_fails_no_epoch(branches: Branches) -> None:
    branches.table()
    committer = branches.committer()
    try:
        committer.open_epoch(0, rows().schema, None)
        for step in range(2):
            ended = branches.run(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                f"WHERE application_name = 'exactsink {branches.job}.out driver'"
            )
            assert ended == [(True,)], step
            if step == 0:
                committer.open_epoch(1, rows().schema, None)
        epoch = branches.prepare(0, 1)
        assert kinds(committer.commit(0, [epoch])) == ["Committed"]
    finally:
        committer.close()
