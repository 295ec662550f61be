"""Prepared participants on a real server: each is committed once, and what is gone is resolved with evidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from exactsink.contract import Fatal, Lost, Retryable, Unknown
from exactsink_postgres.committer import finish, list_prepared
from exactsink_postgres.server import Session
from tests.integration.postgres.sinks import ROWS, Branches, kinds, voted, xid_of

pytest_plugins = ["tests.servers.fixtures"]


def test_outcomes_come_in_the_order_of_the_committables_and_one_that_is_gone_stops_no_other(branches: Branches) -> None:
    epoch = branches.table().prepare_many(6)
    branches.end("ROLLBACK", epoch[1].txn.id)
    branches.end("COMMIT", epoch[3].txn.id)

    outcomes = branches.outcomes(*(epoch[n] for n in (4, 1, 0, 3, 5, 2)))

    assert kinds(outcomes) == ["Committed", "Lost", "Committed", "AlreadyCommitted", "Committed", "Committed"]
    assert branches.ids() == [0, 2, 3, 4, 5]
    lost = outcomes[1]
    assert isinstance(lost, Lost)
    for named in (epoch[1].txn.id, str(xid_of(epoch[1])), "'aborted'"):
        assert named in lost.evidence


@pytest.mark.parametrize("server", ["usual", "takes no two in one pipeline"])
def test_one_that_is_ended_between_listing_and_commit_stops_no_other(branches: Branches, server: str) -> None:
    epoch = branches.table().prepare_many(5)
    with (Session if server == "usual" else _Strict).connect(branches.conninfo, autocommit=True) as session:
        listed = list_prepared(session, [c.txn.id for c in epoch])
        branches.end("COMMIT", epoch[1].txn.id, epoch[3].txn.id)
        done = finish(session, "COMMIT", list(listed.values()), "commit")
    assert done == {epoch[n].txn.id for n in (0, 2, 4)}
    assert branches.ids() == [0, 1, 2, 3, 4]


class _Strict(Session):
    """The server refuses COMMIT PREPARED in a pipeline in which another statement was before it."""

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        with super().pipeline() as pipeline:
            self.execute("SELECT 1")
            yield pipeline


def test_evidence_of_another_database_or_timeline_is_no_evidence(branches: Branches) -> None:
    there, gone = branches.table().prepare_many(2)
    branches.end("COMMIT", gone.txn.id)
    for name, value in {"system": "1234567", "database": 77, "timeline": 99}.items():
        [outcome] = branches.outcomes(voted(gone, **{name: value}))
        assert isinstance(outcome, Unknown), name
        for named in (gone.txn.id, str(xid_of(gone)), f"{name} {value}"):
            assert named in outcome.evidence
    assert branches.commit(voted(there, timeline=99)) == ["Committed"]  # what stands prepared needs no evidence


def test_an_id_that_the_server_does_not_know_or_not_yet_is_in_doubt(branches: Branches) -> None:
    epoch = branches.table().prepare(0, 1)
    branches.end("COMMIT", epoch.txn.id)
    future = xid_of(epoch) + 1_000_000_000
    outcomes = branches.outcomes(voted(epoch, xid=3), voted(epoch, xid=future))
    for outcome, said in zip(outcomes, ("pg_xact_status(3) = NULL", "22023"), strict=True):
        assert isinstance(outcome, Unknown)
        assert said in outcome.evidence
        assert epoch.txn.id in outcome.evidence
    assert str(future) in str(outcomes[1])


def test_one_that_is_neither_prepared_nor_ended_is_asked_for_again(branches: Branches) -> None:
    epoch = branches.table().prepare(0, 1)
    branches.end("COMMIT", epoch.txn.id)
    with psycopg.connect(branches.conninfo) as session:
        row = session.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        with pytest.raises(Retryable, match="'in progress'"):
            branches.outcomes(voted(epoch, xid=int(row[0])))


def test_another_transaction_of_the_same_name_is_not_committed(branches: Branches) -> None:
    epoch = branches.table().prepare(0, 1)
    [outcome] = branches.outcomes(voted(epoch, xid=xid_of(epoch) + 1))
    assert isinstance(outcome, Unknown)
    assert str(xid_of(epoch)) in outcome.evidence
    assert str(xid_of(epoch) + 1) in outcome.evidence
    assert branches.prepared() == [epoch.txn.id]
    assert branches.commit(voted(epoch, xid=xid_of(epoch) + (5 << 32))) == ["Committed"]  # it lists 32 bits


def test_one_that_another_session_is_ending_is_asked_for_again_and_the_others_are_committed(branches: Branches) -> None:
    epoch = branches.table().prepare_many(3)
    with _Busy.connect(branches.conninfo, autocommit=True) as session:
        listed = list_prepared(session, [c.txn.id for c in epoch])
        with pytest.raises(Retryable, match=f"{epoch[0].txn.id}.*stays"):
            finish(session, "COMMIT", [listed[c.txn.id] for c in epoch], "commit")
    assert branches.ids() == [1, 2]
    assert branches.commit(*epoch) == ["Committed", "AlreadyCommitted", "AlreadyCommitted"]


class _Busy(Session):
    """The server answers busy to the COMMIT PREPARED of the first gid, however often."""

    first: str | None = None

    def run(self, statement, *given):  # type: ignore[no-untyped-def]
        if "COMMIT PREPARED" in statement:
            self.first = self.first or statement
            if statement == self.first:
                statement = "DO $$ BEGIN RAISE EXCEPTION 'busy' USING ERRCODE = '55000'; END $$"
        return super().run(statement, *given)


def test_a_vote_of_a_later_release_is_refused(branches: Branches) -> None:
    epoch = branches.table().prepare(0, 1)
    with pytest.raises(Fatal, match="version 2"):
        branches.outcomes(replace(epoch, version=2))
    assert branches.prepared() == [epoch.txn.id]


def test_only_its_owner_may_commit_and_the_others_are_committed_all_the_same(branches: Branches) -> None:
    branches.table()
    theirs, mine = _as(branches, "owner"), _as(branches, "other")
    epoch = [theirs.prepare(0, 1), mine.prepare(1, 2)]

    with pytest.raises(Fatal, match=f"{epoch[0].txn.id}.*role {branches.job}-owner prepared it"):
        mine.commit(*epoch)
    assert branches.ids() == [2]
    with pytest.raises(Fatal, match=f"role {branches.job}-owner prepared it"):
        mine.sweep()
    assert theirs.commit(*epoch) == ["Committed", "AlreadyCommitted"]


def _as(branches: Branches, name: str) -> Branches:
    role = f'"{branches.job}-{name}"'
    branches.run(f"CREATE ROLE {role} LOGIN", f'GRANT SELECT, INSERT ON "{branches.job}" TO {role}')
    return replace(branches, conninfo=branches.conninfo.replace("user=postgres", f"user={branches.job}-{name}"))


def test_a_session_that_died_idle_fails_no_epoch(branches: Branches) -> None:
    branches.table()
    died = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
    died += f"WHERE application_name = 'exactsink {branches.job}.out driver'"
    with branches.committer() as committer:
        committer.open_epoch(0, ROWS, None)
        assert branches.run(died) == [(True,)]
        committer.open_epoch(1, ROWS, None)
        assert branches.run(died) == [(True,)]
        assert kinds(committer.commit(0, [branches.prepare(0, 1)])) == ["Committed"]
