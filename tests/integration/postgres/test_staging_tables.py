"""Staging tables and what else looks at a database: pg_dump, publications, crashes, tables of an earlier release."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from exactsink.contract import Committable
from tests.integration.postgres.sinks import SCHEMA, Staged, new_sink
from tests.servers.postgres import PostgresServer, client, own_postgres
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures"]

_DUMPS = 8
_STAGING = "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname, 'exactsink_rows_')"

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


def test_tables_of_an_earlier_release_are_dropped_when_their_epoch_is_applied_or_swept(database: str) -> None:
    """What is decided there is committed: see the kit's `previous-release`."""
    with new_sink(database, "CREATE TABLE t (id bigint, v text)", staging_schema="exactsink_staging") as sink:
        sink.open(0)
        sink.run("CREATE TABLE exactsink_staged (LIKE exactsink_staging.exactsink_staged INCLUDING ALL)")
        decided, undecided = _earlier(sink, 1), _earlier(sink, 2)
        assert sink.listed() == [decided.txn.id, undecided.txn.id]
        newer = sink.claim(2)
        assert newer.commit(1, [decided]) == ["Committed"]
        newer.abort(undecided.txn)
        assert sink.run(f"{_STAGING} AND relnamespace = to_regnamespace(current_schema())") == []
        assert sink.listed() == []
        assert sink.rows() == [(1, "a")]


def _earlier(sink: Staged, epoch: int) -> Committable:
    """Vote as the release before did: in a table of the epoch's own, beside the sink's."""
    txn = sink.txn(epoch)
    comment = f"orders.out.g1-l1.e{epoch}"
    table = f"exactsink_rows_{hashlib.sha256(comment.encode()).hexdigest()[:16]}"
    sink.run(
        f"CREATE TABLE {table} (exactsink_attempt bigint NOT NULL, LIKE t)",
        f"COMMENT ON TABLE {table} IS '{comment}'",
        f"INSERT INTO {table} VALUES ({txn.attempt}, {epoch}, 'a')",
        f"INSERT INTO exactsink_staged VALUES ('{txn.id}', '{table}', 1)",
    )
    payload = json.dumps({"rows_table": table, "schema": sink.schema})
    return Committable(txn, 1, payload.encode(), 2)
