"""What the server says that has no room, no time or no use for a row: with table, column and key, and a next step."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import ExactsinkError, Fatal, Retryable
from exactsink_postgres.errors import ours
from exactsink_postgres.options import PostgresOptions
from tests.integration.postgres.sinks import SCHEMA, Branches, new_sink
from tests.servers.postgres import PostgresServer, wait_until

REFUSED = {
    "22P02": ("int_or_word", 'enum int_or_word: "b"', "line 2, column v"),
    "22001": ("text, w varchar(1) GENERATED ALWAYS AS (v || v) STORED", "too long for type", "line 2"),
    "22003": ("text, n smallint GENERATED ALWAYS AS (id * 9999) STORED", "smallint out of", "line 2"),
    "23502": ("text, w text NOT NULL GENERATED ALWAYS AS (nullif(v, 'b')) STORED", "column w", "7, b, null)"),
    "23514": ("text CONSTRAINT short CHECK (v < 'b')", "constraint short", "7, b)"),
    "23505": ("text CONSTRAINT once UNIQUE", "once", "(v)=(b)"),
}


@pytest.mark.parametrize("strategy", ["two_phase", "staged"])
@pytest.mark.parametrize("state", REFUSED)
def test_a_row_that_is_refused_is_named_with_table_and_column(database: str, strategy: str, state: str) -> None:
    made, what, row = REFUSED[state]
    enum = "CREATE TYPE int_or_word AS ENUM ('a');" if state == "22P02" else ""
    with new_sink(database, f"{enum} CREATE TABLE t (id bigint, v {made})", strategy=strategy) as sink:
        rows = pa.table({"id": [1, 7, 8], "v": ["a" if state != "22001" else "", "b", "b"]}, schema=SCHEMA)
        with pytest.raises(Fatal) as refused:
            vote = sink.session.write(0, 0, sink.session.open(0, SCHEMA), rows)
            sink.session.check_votes(0, SCHEMA, [vote])  # staged rows are compared once all have voted
        said, cause = str(refused.value), refused.value.__cause__
        assert [words for words in (f"{sink.schema}.t", what, row) if words not in said] == []
        if (strategy, state) != ("staged", "23505"):
            assert isinstance(cause, psycopg.Error)
            assert cause.sqlstate == state
        assert "exactsink_" not in said


def test_a_transaction_that_is_broken_is_never_taken_for_committed(database: str) -> None:
    """The server answers ROLLBACK to its COMMIT, and no error."""
    with new_sink(database, "CREATE TABLE t (id bigint, v text)") as sink:
        options = sink.session.backend.options
        assert isinstance(options, PostgresOptions)
        with (
            options.server.connect("driver") as session,
            pytest.raises(psycopg.errors.InFailedSqlTransaction),
            session.transaction(),
            suppress(psycopg.errors.DivisionByZero),
        ):
            session.run("SELECT 1/0")


@pytest.fixture(scope="module")
def there(server: PostgresServer) -> Branches:
    """A job on a server of the module's own, and its table."""
    return Branches(server.new_database("errors"), "errors").table()


def given_up(there: Branches, how: str, *, idle: bool = False) -> ExactsinkError:
    """Return what a task says whose COPY, or transaction, the server has ended meanwhile; `how` may be a statement."""
    writer = there.writing(0, 1)
    if idle:
        writer.finish()
    if how:
        there.run(how.format(writer.session.info.backend_pid))
    pid = writer.session.info.backend_pid
    late = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND clock_timestamp() - state_change < '300ms'"
    wait_until(lambda: there.run(late) == [], "the timeout to be over")
    with pytest.raises(Retryable) as error:
        writer.vote(1) if idle else writer.pre_commit()
    writer.abort()
    return error.value


@pytest.mark.parametrize("where", ['ROLE "postgres"', 'DATABASE "{}"', 'ROLE "postgres" IN DATABASE "{}"'])
@pytest.mark.parametrize("name", ["statement_timeout", "idle_in_transaction_session_timeout"])
def test_a_timeout_is_named_with_where_it_comes_from_and_what_ends_it(there: Branches, name: str, where: str) -> None:
    [(database,)] = there.run("SELECT current_database()")
    where = where.format(database)
    there.run(f"ALTER {where} SET {name} = 200")
    try:
        error = given_up(there, "", idle=name != "statement_timeout")
        origin, fix = error.next.removesuffix("; then start the job again").split(": ")
        assert origin == f"{name} comes from ALTER {where}"
        there.run(fix)
        assert there.run(f"SHOW {name}") == [("0",)]
    finally:
        there.run(f"ALTER {where} RESET {name}", f'ALTER ROLE "postgres" RESET {name}')


def test_a_cancelled_task_is_no_timeout(there: Branches) -> None:
    assert "pg_cancel_backend" in given_up(there, "SELECT pg_cancel_backend({})").next


def test_a_full_table_of_locks_is_named_by_the_limit_that_the_server_names(there: Branches) -> None:
    fills = "SELECT pg_advisory_lock(n) FROM generate_series(1, 1000000) AS n"
    with psycopg.connect(there.conninfo, autocommit=True) as holder:
        with pytest.raises(psycopg.errors.OutOfMemory) as full:
            holder.execute(fills)
        with pytest.raises(Retryable, match="out of shared memory") as refused:
            there.prepare(0, 1)
        holder.execute("SELECT pg_advisory_unlock_all()")  # a session that is closed ends a little later
    for error in (refused.value, ours(full.value, "write")):
        assert "ALTER SYSTEM SET max_locks_per_transaction = N" in error.next


@pytest.fixture
def small() -> Iterator[Path]:
    """A disk of 1 MB that every user gets to, where this user may mount one."""
    place = Path(tempfile.mkdtemp(prefix="exactsink-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        place.rmdir()
        pytest.skip("only root mounts a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
    place.rmdir()


def test_a_full_disk_is_named(server: PostgresServer, there: Branches, small: Path) -> None:
    folder = small / "space"
    folder.mkdir()
    shutil.chown(folder, "postgres")
    there.run(
        f"CREATE TABLESPACE small LOCATION '{folder}'", 'CREATE TABLE "full" (id bigint, kind text) TABLESPACE small'
    )
    full = replace(there, given=(("table", "full"),))
    with pytest.raises(Retryable, match="No space left on device") as refused:
        full.prepare(0, *range(50_000))
    assert refused.value.next.startswith("free space on the server's disk")
    there.run('DROP TABLE "full"', "DROP TABLESPACE small")


def test_what_two_transactions_did_to_each_other_is_tried_again(there: Branches) -> None:
    for state in ("40001", "40P01"):
        with psycopg.connect(there.conninfo) as session, pytest.raises(psycopg.Error) as said:
            session.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
        assert isinstance(ours(said.value, "write"), Retryable)
