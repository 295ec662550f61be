"""Upserts into PostgreSQL beside what a server may have: a login that acts as another role, dumps on a standby."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from exactsink.contract import Committed, Retryable
from tests.integration.upserts.other_columns import TABLE
from tests.integration.upserts.test_postgres import _GUARDED, Sink, _rows, _task, upserts
from tests.servers.postgres import PostgresServer, client, own_postgres
from tests.servers.waiting import wait_until

__all__ = ["upserts"]

_SETTINGS = {"max_standby_streaming_delay": "0"}
_COPYING = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY %large%' AND wait_event = 'ClientWrite'"
_BLOCKED = "SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
_REPLAYED = "SELECT bool_and(replay_lsn >= pg_current_wal_insert_lsn()) FROM pg_stat_replication"


@pytest.mark.parametrize("strategy", ["staged", "direct"])
def test_own_stalled_tasks_of_a_login_that_acts_as_another_role_are_listed_and_ended(
    upserts: str, strategy: str
) -> None:
    """The server shows a session to the role that logged in, which acts as another one from its first statement."""
    sink = Sink(upserts)
    owner, loader = f"owner_{sink.schema}", f"loader_{sink.schema}"
    sink.run(f"DROP ROLE IF EXISTS {loader}, {owner}; CREATE ROLE {owner}; CREATE ROLE {loader} LOGIN IN ROLE {owner}")
    sink.run(f"ALTER ROLE {loader} SET role = {owner}; ALTER SCHEMA {sink.schema} OWNER TO {owner}")
    sink.run(f"{_GUARDED}; ALTER TABLE {TABLE} OWNER TO {owner}")
    staging = {"staging_schema": sink.schema} if strategy == "staged" else {}
    first = sink.session({"url": sink.url.replace("postgres@", f"{loader}@"), "strategy": strategy, **staging})
    stalled, later = _task(first, 1, (1, "a")), replace(first, ctx=replace(first.ctx, generation=2))
    [listed] = later.listed()
    assert (listed.ref, listed.generation) == (first.txn(1, 0, 101).id, 1)
    later.abort(listed)
    with pytest.raises(Retryable):
        stalled.pre_commit()
    assert (later.listed(), sink.run(f"SELECT * FROM {TABLE}")) == ([], [])
    sink.run(f"DROP OWNED BY {owner}, {loader}; DROP ROLE {loader}, {owner}")
    sink.close()


@pytest.fixture(scope="module")
def standby() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with own_postgres() as primary, own_postgres(_SETTINGS, primary) as standby:
        yield primary, standby


def met(primary: PostgresServer, copy: PostgresServer) -> bool:
    """Return whether the replay waits for the dump, or has canceled it and gone on."""
    return bool(copy.execute(_BLOCKED)) or primary.execute(_REPLAYED) == [(True,)]


@pytest.mark.parametrize("without", [(), ("-N", "exactsink_staging")], ids=["whole", "without the staging schema"])
def test_a_dump_of_a_standby_is_canceled_unless_it_leaves_the_staging_tables_out(
    standby: tuple[PostgresServer, PostgresServer], without: tuple[str, ...]
) -> None:
    """A dump whose reader takes its time holds its locks for as long: an epoch's commit on the primary goes on."""
    primary, copy = standby
    sink = Sink(primary.url())
    sink.run(f"CREATE TABLE {TABLE} (k bigint PRIMARY KEY, v text)")
    sink.run("CREATE TABLE large AS SELECT md5(n::text) AS v FROM generate_series(1, 200000) AS n")
    mine = sink.session({})
    assert mine.commit_marked(1, mine.prepare(1, [_rows((1, "a"))])) == [Committed()]
    wait_until(lambda: primary.execute(_REPLAYED) == [(True,)], "the standby to have the first epoch")
    command = [client("pg_dump"), "--dbname", copy.conninfo(), *without]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dump:
        wait_until(lambda: bool(copy.execute(_COPYING)), "the dump to wait for its reader")
        assert mine.commit_marked(2, mine.prepare(2, [_rows((2, "b"))])) == [Committed()]
        if not without:  # a dump whose send is blocked is canceled only once its reader reads on
            wait_until(lambda: met(primary, copy), "the replay to meet the dump")
            _, said = dump.communicate()
        wait_until(lambda: primary.execute(_REPLAYED) == [(True,)], "the standby to replay all")
        assert copy.execute(f"SELECT k FROM {sink.schema}.{TABLE} ORDER BY k") == [(1,), (2,)]
        if without:
            _, said = dump.communicate()
    assert ("conflict with recovery" in said.decode(), dump.returncode == 0) == (not without, bool(without))
    sink.run("DROP TABLE large")
    sink.close()
