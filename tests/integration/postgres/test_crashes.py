"""The server crashes, or the connection is cut, around votes and commits: the next call knows what became of each."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from psycopg.conninfo import conninfo_to_dict

from exactsink.contract import Retryable
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from tests.integration.postgres.sinks import Branches, Staged, kinds, new_sink
from tests.servers.cutting_proxy import Trap, cutting_proxy
from tests.servers.postgres import PostgresServer, wait_until

MANY = 8


class Upserts(Staged):
    """The same table, upserted into."""

    @property
    def backend(self) -> Any:
        place = conninfo_to_dict(self.conninfo)
        database = place.pop("dbname")
        given = {"url": f"postgresql:///{database}?{urlencode(place)}", "table": "t", "keys": ["id"]}
        return UpsertBackend(UpsertOptions.model_validate({**given, "busy_timeout_seconds": 5, **dict(self.given)}))


@pytest.fixture(params=["inserts", "staged", "direct"])
def own(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Staged]:
    guard = ", exactsink_epoch bigint, exactsink_generation bigint" if request.param == "direct" else ""
    with new_sink(server.new_database("staged"), f"CREATE TABLE t (id bigint PRIMARY KEY, v text{guard})") as sink:
        if request.param == "inserts":
            yield sink
        else:
            given = sink.given if request.param == "staged" else ()
            yield Upserts(sink.conninfo, given=(*given, ("strategy", request.param))).bound()


def test_a_crash_between_prepare_and_commit_and_one_in_the_middle_of_the_commit(server: PostgresServer) -> None:
    branches = Branches(server.conninfo(), "crash").table()
    epoch = branches.prepare_many(MANY)
    server.stop("immediate")
    with pytest.raises(Retryable):
        branches.commit(*epoch)
    server.start()
    assert branches.prepared() == sorted(c.txn.id for c in epoch)

    with cutting_proxy(server) as proxy, Branches(proxy.way.conninfo(), "crash").committer() as committer:
        trap = proxy.set(Trap(rb"COMMIT PREPARED", nth=MANY // 2, before=lambda: _crash_after(branches, server)))
        with pytest.raises(Retryable):
            committer.commit(0, epoch)
        assert trap.sprung.wait(60)
        server.start()
        left = branches.prepared()
        assert len(left) == MANY - MANY // 2 + 1
        expected = ["Committed" if c.txn.id in left else "AlreadyCommitted" for c in epoch]
        assert kinds(committer.commit(0, epoch)) == expected
    assert branches.ids() == list(range(MANY))
    assert branches.prepared() == []


def _crash_after(branches: Branches, server: PostgresServer) -> None:
    """Crash when the server has run all that it got."""
    wait_until(lambda: len(branches.prepared()) == MANY - MANY // 2 + 1, "the first half to be committed")
    server.stop("immediate")


def test_a_vote_whose_answer_was_cut_is_no_vote_and_is_swept(server: PostgresServer) -> None:
    branches = Branches(server.conninfo(), "lost-vote").table()
    with cutting_proxy(server) as proxy:
        trap = proxy.set(Trap(rb"PREPARE TRANSACTION"))
        with pytest.raises(Retryable):
            Branches(proxy.way.conninfo(), "lost-vote").prepare(0, 1)
        assert trap.sprung.wait(60)
    assert branches.sweep() == [branches.txn(0).id]
    assert branches.prepared() == []


def test_the_server_crashes_before_a_vote_after_one_and_between_a_commit_and_its_answer(
    own: Staged, server: PostgresServer
) -> None:
    votes, late = own.vote(1, [(1, "a")]), own.task(own.open(1), own.txn(1, 1), (2, "b"))
    server.stop("immediate")
    with pytest.raises(Retryable):
        late.pre_commit()
    late.abort()
    server.start()
    server.name_standbys("nobody")
    with ThreadPoolExecutor() as pool:
        applying = pool.submit(own.commit, 1, votes)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: bool(own.run(waiting)), "the commit to be on disk")
        server.stop("immediate")
        with pytest.raises(Retryable):
            applying.result()
    server.start()
    server.name_standbys("")
    assert own.rows() == [(1, "a")]
    assert own.commit(1, votes) == ["AlreadyCommitted"]
    assert own.rows() == [(1, "a")]
    assert own.staging_tables() == own.registered() == []
