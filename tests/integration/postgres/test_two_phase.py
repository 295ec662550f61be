"""Prepared participants on a real server: each is committed once, and what is gone is resolved with evidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from exactsink.contract import Fatal, Lost, Retryable
from exactsink_postgres.committer import finish, list_prepared
from exactsink_postgres.server import Session
from tests.integration.postgres.sinks import ROWS, Branches, kinds


def test_outcomes_come_in_the_order_of_the_committables_and_one_that_is_gone_stops_no_other(branches: Branches) -> None:
    epoch = branches.table().prepare_many(6)
    branches.end("ROLLBACK", epoch[1].txn.id)
    branches.end("COMMIT", epoch[3].txn.id)

    outcomes = branches.outcomes(*(epoch[n] for n in (4, 1, 0, 3, 5, 2)))

    assert kinds(outcomes) == ["Committed", "Lost", "Committed", "AlreadyCommitted", "Committed", "Committed"]
    assert branches.ids() == [0, 2, 3, 4, 5]
    lost = outcomes[1]
    assert isinstance(lost, Lost)
    for named in (epoch[1].txn.id, "the target's mark is epoch 0"):
        assert named in lost.evidence


@pytest.mark.parametrize("server", ["usual", "takes no two in one pipeline"])
def test_one_that_is_ended_between_listing_and_commit_stops_no_other(branches: Branches, server: str) -> None:
    epoch = branches.table().prepare_many(5)
    with (Session if server == "usual" else _Strict).connect(branches.conninfo, autocommit=True) as session:
        listed = list_prepared(session, [c.txn.id for c in epoch])
        branches.end("COMMIT", epoch[1].txn.id, epoch[3].txn.id)
        done = finish(session, "COMMIT", listed, "commit")
    assert done == {epoch[n].txn.id for n in (0, 2, 4)}
    assert branches.ids() == [0, 1, 2, 3, 4]


class _Strict(Session):
    """The server refuses COMMIT PREPARED in a pipeline in which another statement was before it."""

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        with super().pipeline() as pipeline:
            self.execute("SELECT 1")
            yield pipeline


def test_one_that_another_session_is_ending_is_asked_for_again_and_the_others_are_committed(branches: Branches) -> None:
    epoch = branches.table().prepare_many(3)
    busy = _Busy.connect(branches.conninfo, autocommit=True)
    with busy as session, pytest.raises(Retryable, match=f"{epoch[0].txn.id}.*stays"):
        finish(session, "COMMIT", [c.txn.id for c in epoch], "commit")
    assert branches.ids() == [1, 2]
    assert branches.commit(*epoch) == ["Committed", "AlreadyCommitted", "AlreadyCommitted"]


class _Busy(Session):
    """The server answers busy to the COMMIT PREPARED of the first gid, however often."""

    first: bytes | None = None

    def alone(self, query, *given, **more):  # type: ignore[no-untyped-def]
        if isinstance(query, bytes) and b"COMMIT PREPARED" in query:
            self.first = self.first or query
            if query == self.first:
                query = "DO $$ BEGIN RAISE EXCEPTION 'busy' USING ERRCODE = '55000'; END $$"
        return super().alone(query, *given, **more)


def test_a_vote_of_a_later_release_is_refused(branches: Branches) -> None:
    epoch = branches.table().prepare(0, 1)
    with pytest.raises(Fatal, match="version 3"):
        branches.outcomes(replace(epoch, version=3))
    assert branches.prepared() == [epoch.txn.id]


def test_only_its_owner_may_commit_and_the_others_are_committed_all_the_same(branches: Branches) -> None:
    branches.table()
    theirs, mine = _as(branches, "owner"), _as(branches, "other")
    epoch = [theirs.prepare(0, 1), mine.prepare(1, 2)]

    for call in (mine.session.assess, mine.session.commit):
        with pytest.raises(Fatal, match=f"{epoch[0].txn.id}.*role {branches.job}-owner prepared it"):
            call(0, epoch)
    assert branches.ids() == [2]
    with pytest.raises(Fatal, match=f"role {branches.job}-owner prepared it"):
        mine.sweep()
    assert theirs.commit(*epoch) == ["Committed", "AlreadyCommitted"]


def _as(branches: Branches, name: str) -> Branches:
    role = f'"{branches.job}-{name}"'
    branches.run(f"CREATE ROLE {role} LOGIN", f'GRANT SELECT, INSERT ON "{branches.job}" TO {role}')
    branches.run(f"GRANT SELECT, INSERT, DELETE ON exactsink_epochs TO {role}")
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
