"""A task and its server: opening, rows that are refused, no slot, a broken transaction, a session that is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import Fatal, Retryable, Txn
from exactsink_postgres.load import Ticket
from exactsink_postgres.locks import Waiting
from exactsink_postgres.server import KeptSession
from tests.integration.postgres.sinks import ROWS, Branches, rows
from tests.servers.postgres import Postgres, PostgresServer, own_postgres

WIDER = ROWS.append(pa.field("more", pa.float64()))
REFUSED = {
    "unique": ("id bigint CONSTRAINT once PRIMARY KEY, kind text", (1, 2, 1), ["once", "(id)=(1)"]),
    "check": ("id bigint CONSTRAINT small CHECK (id < 9), kind text", (1, 10), ["small", "(10, k10)"]),
    "not null": ("id bigint, kind text, more text NOT NULL DEFAULT nullif('', '')", (1,), ["more", "(1, k1, null)"]),
    "at the end": ("id bigint CONSTRAINT late UNIQUE DEFERRABLE INITIALLY DEFERRED, kind text", (1, 1), ["late"]),
}

# Opening


def columns(branches: Branches) -> list[str]:
    of = f"attrelid = '\"{branches.job}\"'::regclass AND attnum > 0"
    return [name for (name,) in branches.run(f"SELECT attname FROM pg_attribute WHERE {of} ORDER BY attnum")]


def together(call: Callable[[], bytes]) -> list[bytes]:
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(lambda _: call(), range(6)))


def test_the_table_is_made_and_widened_once_by_drivers_that_start_together(branches: Branches) -> None:
    making = branches.with_(create=True, on_schema_change="add_columns")
    tickets = together(making.ticket)
    assert columns(branches) == ["id", "kind"]
    assert len(set(tickets)) == 1
    ticket = Ticket.load(tickets[0])
    assert (ticket.relation, [c.name for c in ticket.columns]) == (f'"public"."{branches.job}"', ["id", "kind"])
    together(lambda: making.ticket(1, WIDER))
    assert columns(branches) == ["id", "kind", "more"]


@pytest.mark.parametrize("strategy", ["two_phase", "staged"])
def test_create_adds_no_column_to_a_table_and_on_schema_change_does(branches: Branches, strategy: str) -> None:
    making = branches.with_(create=True, strategy=strategy)
    making.ticket()
    with pytest.raises(Fatal, match="has no column more") as refused:
        making.ticket(1, WIDER)
    assert 'ADD COLUMN IF NOT EXISTS "more"' in refused.value.next
    assert columns(branches) == ["id", "kind"]
    branches.with_(strategy=strategy, on_schema_change="add_columns").ticket(1, WIDER)
    assert columns(branches) == ["id", "kind", "more"]


def test_what_the_table_can_not_take_is_refused_with_the_statement_that_fixes_it(branches: Branches) -> None:
    with pytest.raises(Fatal, match=f"there is no table {branches.job}") as refused:
        branches.ticket()
    assert f'CREATE TABLE IF NOT EXISTS "{branches.job}"' in refused.value.next
    assert "create = true" in refused.value.next
    branches.table("id date, kind text")
    with pytest.raises(Fatal, match="column id"):
        branches.ticket()


def test_a_session_is_kept_and_silence_neither_ends_it_nor_hides_that_it_is_dead(branches: Branches) -> None:
    server = branches.with_(conninfo=f"{branches.conninfo} keepalives_count=9").backend.options.server
    session = KeptSession(server, "a test", 5)
    pids = []
    for _ in range(2):
        with session.use(Waiting("ask", "")) as connection:
            pids.append(connection.info.backend_pid)
            assert connection.execute("SHOW lock_timeout").fetchone() == ("5s",)
            taken = connection.info.get_parameters()
    session.close()
    assert pids[0] == pids[1]
    assert (taken["keepalives_idle"], taken["keepalives_count"]) == ("30", "9")
    assert branches.run("SELECT 1 FROM pg_stat_activity WHERE application_name = 'a test' AND state <> 'idle'") == []


# Rows


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_break_a_constraint_are_reported_with_table_constraint_and_key(branches: Branches, case: str) -> None:
    made, ids, named = REFUSED[case]
    branches.table(made)
    with pytest.raises(Fatal) as refused:
        branches.prepare(0, *ids)
    for words in (f"public.{branches.job}", *named):
        assert words in str(refused.value)
    assert branches.ids() == branches.prepared() == branches.writing_sessions() == []


def test_a_trigger_that_drops_rows_is_found_by_the_servers_count(branches: Branches) -> None:
    drop = f'"{branches.job}_drop"'
    branches.table().run(
        f"CREATE FUNCTION {drop}() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.id = 2 THEN RETURN NULL; END IF; RETURN new; END'",
        f'CREATE TRIGGER drops BEFORE INSERT ON "{branches.job}" FOR EACH ROW EXECUTE FUNCTION {drop}()',
    )
    with pytest.raises(Fatal, match="the server took 2 of 3 rows"):
        branches.prepare(0, 1, 2, 3)
    assert branches.prepared() == []


# Sessions


def test_a_transaction_that_is_broken_before_it_is_prepared_is_no_vote(branches: Branches) -> None:
    """PREPARE answers ROLLBACK then, without an error."""
    writer = branches.table().writing(0, 1)
    finish = writer.finish

    def broken() -> int:
        count = finish()
        with suppress(psycopg.Error):
            writer.session.execute("SELECT 1 / 0")
        return count

    writer.finish = broken  # type: ignore[method-assign]
    with pytest.raises(Retryable, match="the server answered ROLLBACK"):
        writer.pre_commit()
    assert branches.prepared() == []


@pytest.mark.parametrize("moment", ["write", "pre_commit", "PREPARE"])
def test_a_session_that_is_killed_is_tried_again(branches: Branches, moment: str) -> None:
    threads = set(threading.enumerate())
    writer = branches.table().writing(0)
    finish = writer.finish

    def kill() -> int:
        branches.run(f"SELECT pg_terminate_backend({writer.session.info.backend_pid}, 10000)")
        return 1

    if moment == "PREPARE":
        writer.finish = lambda: finish() and kill()  # type: ignore[method-assign]
    many = rows(*range(50_000))
    with pytest.raises(Retryable):
        if moment == "write":
            kill()
            for _ in range(50):  # what a socket takes before it says that nobody is there
                writer.write(many)
        writer.write(rows(1))
        if moment == "pre_commit":
            kill()
        writer.pre_commit()
    writer.abort()
    assert branches.prepared() == []
    assert set(threading.enumerate()) <= threads


def test_what_a_task_gives_up_leaves_no_session_and_no_lock(branches: Branches) -> None:
    writer = branches.table().writing(0, 1)
    writer.abort()
    assert writer.session.closed
    assert branches.commit(branches.prepare(1, 1)) == ["Committed"]


def test_a_task_in_another_database_than_the_driver_is_refused(branches: Branches, postgres: Postgres) -> None:
    ticket = branches.table().ticket()
    name = f"elsewhere_{branches.job}".replace("-", "_")
    postgres.create_database(name)
    elsewhere = replace(branches, conninfo=f"{branches.conninfo} dbname={name}")
    with pytest.raises(Fatal, match="another database than the driver"):
        elsewhere.writer(branches.txn(0), ticket)
    replace(elsewhere, lineage="l2").table()
    with pytest.raises(Fatal, match="journal l1 has left no mark there"):
        elsewhere.writer(branches.txn(0), ticket)


@pytest.mark.parametrize("name", ["x', 'y", "*/ DROP TABLE t; /*"])
def test_a_name_that_is_no_participants_gets_into_no_statement(branches: Branches, name: str) -> None:
    ticket = branches.table().ticket()
    with pytest.raises(ValueError, match="not a participant's name"):
        branches.writer(Txn(name, 0, "out", 1, "aa", 0, 0), ticket)


# Slots


@pytest.fixture(params=[0, 2])
def tight(request: pytest.FixtureRequest) -> Iterator[tuple[int, PostgresServer]]:
    """A server with few slots."""
    with own_postgres({"max_prepared_transactions": str(request.param)}) as server:
        yield request.param, server


def test_a_server_without_a_free_slot_names_the_setting_and_one_with_none_the_other_strategy(
    tight: tuple[int, PostgresServer],
) -> None:
    slots, server = tight
    branches = Branches(server.conninfo(), "tight").table()
    if not slots:
        with pytest.raises(Fatal, match="max_prepared_transactions is 0") as none:
            branches.prepare(0, 1)
        assert 'strategy = "staged"' in none.value.next
        assert "ALTER SYSTEM SET max_prepared_transactions = 64" in none.value.next
        return
    epoch = branches.prepare_many(slots)
    with pytest.raises(Retryable, match="maximum number of prepared transactions reached") as refused:
        branches.prepare(2, 3)
    assert "ALTER SYSTEM SET max_prepared_transactions" in refused.value.next
    assert branches.commit(*epoch) == ["Committed", "Committed"]
    assert branches.commit(branches.prepare(2, 3)) == ["Committed"]
