"""The server crashes, or the connection is cut, around the commit of many: the next call knows what became of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from exactsink.contract import ExactsinkError, Retryable
from tests.integration.postgres.branches import Branches, kinds, rows
from tests.servers.cutting_proxy import Trap, cutting_proxy
from tests.servers.postgres import PostgresServer, own_postgres, wait_until

MANY = 30


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with own_postgres() as server:
        yield server


def test_a_crash_between_prepare_and_commit_and_one_in_the_middle_of_the_commit(server: PostgresServer) -> None:
    branches = Branches(server.conninfo(), "crash").table()
    epoch = branches.prepare_many(MANY)
    server.stop("immediate")
    with pytest.raises(Retryable):
        branches.commit(epoch)
    server.start()
    assert branches.prepared() == sorted(c.txn.id for c in epoch)

    with cutting_proxy(server) as proxy:
        committer = Branches(proxy.way.conninfo(), "crash").committer()
        trap = proxy.set(Trap(rb"COMMIT PREPARED", nth=MANY // 2, before=lambda: _crash_after(branches, server)))
        with pytest.raises(Retryable):
            committer.commit(0, epoch)
        assert trap.sprung.wait(60)
        server.start()
        left = branches.prepared()
        assert len(left) == MANY - MANY // 2 + 1

        expected = ["Committed" if c.txn.id in left else "AlreadyCommitted" for c in epoch]
        assert kinds(committer.commit(0, epoch)) == expected
        committer.close()
    assert branches.ids() == list(range(MANY))
    assert branches.prepared() == []


def _crash_after(branches: Branches, server: PostgresServer) -> None:
    """Crash when the server has run all that it got."""
    wait_until(lambda: len(branches.prepared()) == MANY - MANY // 2 + 1, "the first half to be committed")
    server.stop("immediate")


def test_a_connection_that_is_cut_before_the_answer_is_settled_by_the_next_call(server: PostgresServer) -> None:
    branches = Branches(server.conninfo(), "cut").table()
    epoch = [branches.prepare(n, n) for n in range(3)]
    with cutting_proxy(server) as proxy:
        committer = Branches(proxy.way.conninfo(), "cut").committer()
        trap = proxy.set(Trap(rb"COMMIT PREPARED"))
        with pytest.raises(Retryable):
            committer.commit(0, epoch)
        assert trap.sprung.wait(60)
        assert kinds(committer.commit(0, epoch)) == ["AlreadyCommitted"] * 3
        committer.close()
    assert branches.ids() == [0, 1, 2]


def test_a_vote_whose_answer_was_cut_is_no_vote_and_is_swept(server: PostgresServer) -> None:
    branches = Branches(server.conninfo(), "lost-vote").table()
    with cutting_proxy(server) as proxy:
        trap = proxy.set(Trap(rb"PREPARE TRANSACTION"))
        with pytest.raises(Retryable):
            Branches(proxy.way.conninfo(), "lost-vote").prepare(0, 1)
        assert trap.sprung.wait(60)
    assert branches.sweep() == [branches.txn(0).id]
    assert branches.prepared() == []


def test_a_server_that_stops_under_a_task_is_tried_again(server: PostgresServer) -> None:
    branches = Branches(server.conninfo(), "stop").table()
    writer = branches.writer(0)
    writer.write(rows(1))
    server.stop("fast")
    with pytest.raises(Retryable):
        writer.pre_commit()
    with suppress(ExactsinkError):
        writer.abort()
    server.start()
    assert branches.sweep() == []
    assert branches.commit([branches.prepare(0, 1, attempt=1)]) == ["Committed"]
