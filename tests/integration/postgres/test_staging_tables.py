"""Staging tables and what else looks at a database: pg_dump, publications, crashes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from exactsink.contract import Committable
from tests.integration.postgres.sinks import SCHEMA, Staged
from tests.servers.postgres import PostgresServer, client, own_postgres
from tests.servers.waiting import wait_until

_DUMPS = 8

_PERSISTENCE = (
    "SELECT DISTINCT relpersistence FROM pg_class WHERE relkind = 'r' AND relname ~ '^exactsink_(rows|staged)'"
)


@pytest.fixture(scope="module")
def publisher() -> Iterator[PostgresServer]:
    with own_postgres({"wal_level": "logical"}) as server:
        yield server


def _sink(server: PostgresServer, database: str, **options: object) -> Staged:
    server.create_database(database)
    sink = Staged(server.conninfo(database), given=tuple(options.items()))
    sink.run("CREATE TABLE t (id bigint, v text)")
    return sink


def test_pg_dump_beside_a_running_job_never_fails(publisher: PostgresServer) -> None:
    sink = _sink(publisher, "dumped").bound()
    dump = [client("pg_dump"), "--dbname", sink.conninfo, "--file", "/dev/null"]
    epoch = 0
    with ThreadPoolExecutor(1) as pool:
        dumps = [pool.submit(subprocess.run, dump, capture_output=True, text=True) for _ in range(_DUMPS)]
        while not all(dumped.done() for dumped in dumps):
            epoch += 1
            assert sink.commit(epoch, sink.vote(epoch, [(epoch, "a")])) == ["Committed"]
    assert [dumped.result().stderr for dumped in dumps] == [""] * _DUMPS
    assert epoch > 2
    assert [n for n, _ in sink.rows()] == list(range(1, epoch + 1))


@pytest.mark.parametrize(
    ("published", "options"),
    [("ALL TABLES", {"staging": "unlogged"}), ("TABLES IN SCHEMA public", {})],
    ids=["all tables", "a schema"],
)
def test_a_subscriber_goes_on_and_has_the_sinks_rows(
    publisher: PostgresServer, published: str, options: dict[str, str]
) -> None:
    """The subscriber gets the table of the marks as `check` says, and has no staging table."""
    name = f"published_{len(options)}"
    sink = _sink(publisher, name, **options)
    sink.run(
        f"CREATE PUBLICATION p FOR {published}", f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
    )
    with sink.committer() as committer:
        [warning] = [finding for finding in committer.check(SCHEMA, None) if "publication" in finding.message]
    subscriber = _sink(publisher, f"subscriber_{len(options)}")
    subscriber.run(warning.fix.partition(";")[0])
    subscriber.run(
        f"CREATE SUBSCRIPTION s CONNECTION '{sink.conninfo}' PUBLICATION p "
        f"WITH (create_slot = false, slot_name = '{name}', copy_data = false)"
    )
    sink.bound()
    for epoch in range(5):
        assert sink.commit(epoch, sink.vote(epoch, [(epoch, "a")], [(10 + epoch, "b")])) == ["Committed"] * 2
        wait_until(lambda: subscriber.rows() == sink.rows(), f"epoch {epoch} at the subscriber")
    [(errors,)] = subscriber.run("SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 's'")
    assert errors == 0
    subscriber.run("DROP SUBSCRIPTION s")


def test_unlogged_rows_that_a_crash_has_emptied_are_lost_and_logged_ones_stand(publisher: PostgresServer) -> None:
    sinks = {staging: _sink(publisher, staging, staging=staging).bound() for staging in ("logged", "unlogged")}
    votes = {staging: sink.vote(1, [(1, "a")]) for staging, sink in sinks.items()}
    assert {staging: sink.run(_PERSISTENCE) for staging, sink in sinks.items()} == {
        "logged": [("p",)],
        "unlogged": [("u",)],
    }
    publisher.stop("immediate")
    publisher.start()
    assert [len(sink.listed()) for sink in sinks.values()] == [1, 0]
    assert {staging: _commit_marked(sink, 1, votes[staging]) for staging, sink in sinks.items()} == {
        "logged": ["Committed"],
        "unlogged": ["Lost"],
    }
    again = sinks["unlogged"]
    assert again.commit(1, again.vote(1, [(1, "a")])) == ["Committed"]
    assert [sink.rows() for sink in sinks.values()] == [[(1, "a")]] * 2


def _commit_marked(sink: Staged, epoch: int, votes: list[Committable]) -> list[str]:
    return [type(outcome).__name__ for outcome in sink.session.commit_marked(epoch, votes)]
