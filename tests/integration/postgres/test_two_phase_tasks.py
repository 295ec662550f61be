"""What a task meets at its server: rows that are refused, no slot, a broken transaction, a session that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

from exactsink.contract import Fatal, Retryable, Txn
from exactsink_postgres.two_phase import TwoPhaseWriter
from tests.integration.postgres.branches import ROWS, Branches, rows
from tests.servers.postgres import PostgresServer, own_postgres

pytest_plugins = ["tests.servers.fixtures", "tests.integration.postgres.two_phase_fixtures"]

REFUSED = {
    "unique": ("id bigint CONSTRAINT once PRIMARY KEY, kind text", (1, 2, 1), ["once", "(id)=(1)"]),
    "check": ("id bigint CONSTRAINT small CHECK (id < 9), kind text", (1, 10), ["small", "(10, k10)"]),
    "not null": (
        "id bigint, kind text, more text NOT NULL DEFAULT nullif('', '')",
        (1,),
        ["column more", "(1, k1, null)"],
    ),
    "at the end": (
        "id bigint CONSTRAINT late UNIQUE DEFERRABLE INITIALLY DEFERRED, kind text",
        (1, 1),
        ["late", "(id)=(1)"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_break_a_constraint_are_reported_with_table_constraint_and_key(branches: Branches, case: str) -> None:
    columns, ids, reported = REFUSED[case]
    branches.table(columns)
    with pytest.raises(Fatal) as refused:
        branches.prepare(0, *ids)
    for words in (f"public.{branches.job}", *reported):
        assert words in str(refused.value)
    assert branches.ids() == []
    assert branches.prepared() == []
    assert branches.sessions() == []


def test_a_trigger_that_drops_rows_is_found_by_the_servers_count(branches: Branches) -> None:
    branches.table()
    drop = f'"{branches.job}_drop"'
    branches.run(
        f"CREATE FUNCTION {drop}() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.id = 2 THEN RETURN NULL; END IF; RETURN new; END'",
        f'CREATE TRIGGER drops BEFORE INSERT ON "{branches.job}" FOR EACH ROW EXECUTE FUNCTION {drop}()',
    )
    with pytest.raises(Fatal, match="the server took 2 of 3 rows"):
        branches.prepare(0, 1, 2, 3)
    assert branches.prepared() == []


def test_a_transaction_that_is_broken_before_it_is_prepared_is_no_vote(branches: Branches) -> None:
    """PREPARE answers ROLLBACK then, without an error."""
    branches.table()
    writer = branches.writer(0)
    writer.write(rows(1))
    load, finish = writer._load, writer._load.finish

    def broken() -> int:
        count = finish()
        with suppress(psycopg.Error):
            load.connection.execute("SELECT 1 / 0")
        return count

    load.finish = broken  # type: ignore[method-assign]
    with pytest.raises(Retryable, match="the server answered ROLLBACK"):
        writer.pre_commit()
    assert branches.prepared() == []


@pytest.mark.parametrize("moment", ["write", "pre_commit", "PREPARE"])
def test_a_session_that_is_killed_is_tried_again(branches: Branches, moment: str) -> None:
    branches.table()
    writer = branches.writer(0)
    load, finish = writer._load, writer._load.finish

    def kill() -> int:
        branches.run(f"SELECT pg_terminate_backend({load.connection.info.backend_pid}, 10000)")
        return 1

    if moment == "PREPARE":
        load.finish = lambda: finish() and kill()  # type: ignore[method-assign]
    with pytest.raises(Retryable):
        if moment == "write":
            kill()
            for _ in range(50):  # what a socket takes before it says that nobody is there
                writer.write(rows(*range(50_000)))
        writer.write(rows(1))
        if moment == "pre_commit":
            kill()
        writer.pre_commit()
    writer.abort()
    assert branches.prepared() == []
    assert "exactsink-locks" not in [thread.name for thread in threading.enumerate()]


def test_what_a_task_gives_up_leaves_no_session_and_no_lock(branches: Branches) -> None:
    branches.table()
    writer = branches.writer(0)
    writer.write(rows(1))
    writer.abort()
    assert branches.commit([branches.prepare(1, 1)]) == ["Committed"]


def test_a_task_in_another_database_than_the_driver_is_refused(branches: Branches) -> None:
    branches.table()
    ticket = branches.ticket()
    elsewhere = replace(branches, conninfo=f"{branches.conninfo} dbname=postgres")
    with pytest.raises(Fatal, match="another database than the driver"):
        TwoPhaseWriter(elsewhere.options, branches.txn(0), ROWS, ticket)


@pytest.mark.parametrize("name", ["x', 'y", "*/ DROP TABLE t; /*"])
def test_a_name_that_is_no_participants_gets_into_no_statement(branches: Branches, name: str) -> None:
    branches.table()
    ticket = branches.ticket()
    with pytest.raises(ValueError, match="no participant's name"):
        TwoPhaseWriter(branches.options, Txn(name, 0, "out", 1, "aa", 0, 0), ROWS, ticket)


@pytest.fixture(scope="module")
def tight() -> Iterator[PostgresServer]:
    """A server with two slots."""
    with own_postgres({"max_prepared_transactions": "2"}) as server:
        yield server


def test_a_server_without_a_free_slot_is_asked_again_and_the_fix_is_reported(tight: PostgresServer) -> None:
    branches = Branches(tight.conninfo(), "tight").table()
    epoch = [branches.prepare(0, 1), branches.prepare(1, 2)]
    with pytest.raises(Retryable, match="maximum number of prepared transactions reached") as refused:
        branches.prepare(2, 3)
    assert "ALTER SYSTEM SET max_prepared_transactions" in refused.value.next
    assert branches.commit(epoch) == ["Committed", "Committed"]
    assert branches.commit([branches.prepare(2, 3)]) == ["Committed"]


def test_a_server_that_prepares_nothing_is_refused_with_the_setting_and_the_other_strategy() -> None:
    with own_postgres({"max_prepared_transactions": "0"}) as server:
        branches = Branches(server.conninfo(), "none").table()
        with pytest.raises(Fatal, match="max_prepared_transactions is 0") as refused:
            branches.prepare(0, 1)
        assert 'strategy = "staged"' in refused.value.next
        assert "ALTER SYSTEM SET max_prepared_transactions = 64" in refused.value.next
        assert branches.ids() == []
