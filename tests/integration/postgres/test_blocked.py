"""A task that waits for a lock fails in time, and names who holds it: a right name, and what ends that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg
import pytest

from exactsink.contract import ExactsinkError, Fatal, Retryable
from exactsink_postgres.locks import LockWatch
from exactsink_postgres.two_phase import TwoPhaseWriter
from tests.integration.postgres.branches import ROWS, Branches, rows
from tests.servers.postgres import wait_until

pytest_plugins = ["tests.servers.fixtures", "tests.integration.postgres.two_phase_fixtures"]


@pytest.fixture
def table(branches: Branches) -> Branches:
    """A job's second generation, its table, and a lock timeout that leaves time to look."""
    return replace(branches.table().with_(lock_timeout_seconds=2), generation=2)


@contextmanager
def live(branches: Branches, partition: int, *ids: int, attempt: int = 0) -> Iterator[TwoPhaseWriter]:
    """A participant whose rows are at the server, and have not been voted for."""
    writer = branches.writer(partition, attempt)
    writer.write(rows(*ids))
    writer._load.finish()
    try:
        yield writer
    finally:
        writer.abort()


def refusal(branches: Branches, *ids: int, ticket: bytes, partition: int = 0, attempt: int = 9) -> ExactsinkError:
    """Write rows that are locked; give what the task says."""
    with pytest.raises(ExactsinkError) as refused:
        writer = TwoPhaseWriter(branches.options, branches.txn(partition, attempt), ROWS, ticket)
        writer.write(rows(*ids))
        writer.pre_commit()
    return refused.value


def watches() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "exactsink-locks"]


def test_every_holder_of_a_key_is_named_and_reported_how_it_ends(table: Branches) -> None:
    """One key for each case, so that they wait side by side."""
    ticket = table.ticket()
    older = replace(table, generation=1).prepare(0, 1)
    other = replace(table, job=f"{table.job}-else", given=(("table", f'"{table.job}"'), *table.given)).prepare(0, 2)
    table.foreign(f"somebody's {table.job}", f"""INSERT INTO "{table.job}" VALUES (3)""")
    newer = replace(table, generation=3).prepare(0, 4)
    earlier = table.prepare(0, 5, attempt=1)
    sibling = table.prepare(7, 6)
    sink = replace(table, sink="twin").prepare(0, 7)
    with live(table, 8, 8) as working, ThreadPoolExecutor() as pool:
        pid = working._load.connection.info.backend_pid
        reported = list(pool.map(lambda key: refusal(table, key, ticket=ticket, attempt=100 + key), range(1, 9)))

    expected: dict[int, tuple[type[ExactsinkError], str, str]] = {
        1: (Retryable, f"prepared transaction {older.txn.id}", "the next start rolls it back"),
        2: (Retryable, f"prepared transaction {other.txn.id}", f"start job {table.job}-else"),
        3: (Retryable, f"prepared transaction somebody's {table.job}", f"ROLLBACK PREPARED 'somebody''s {table.job}'"),
        4: (Retryable, f"prepared transaction {newer.txn.id}", "another driver has claimed this job"),
        5: (Retryable, f"prepared transaction {earlier.txn.id}", "an earlier attempt"),
        6: (Fatal, f"prepared transaction {sibling.txn.id}", 'distribution = "hash(key)"'),
        7: (Fatal, f"prepared transaction {sink.txn.id}", "sinks twin and out"),
        8: (Fatal, f"session {pid} of {table.txn(8).id}", 'distribution = "hash(key)"'),
    }
    for key, (kind, holder, fix) in expected.items():
        error = reported[key - 1]
        assert isinstance(error, kind), (key, str(error))
        assert f"blocked by {holder}, " in error.what
        assert fix in str(error), (key, str(error))
    assert watches() == []


def test_a_table_lock_is_named_by_the_mode_that_blocks_and_a_harmless_orphan_is_not(table: Branches) -> None:
    ticket = table.ticket()
    replace(table, job=f"{table.job}-else", given=(("table", f'"{table.job}"'), *table.given)).prepare(0, 1)
    table.foreign(f"their {table.job}", f'LOCK TABLE "{table.job}" IN SHARE UPDATE EXCLUSIVE MODE')
    with psycopg.connect(table.conninfo) as session:
        session.execute(f'LOCK TABLE "{table.job}" IN ROW EXCLUSIVE MODE'.encode())
        # ALTER waits for all three of them; a task's rows wait behind ALTER alone.
        alter = threading.Thread(target=_alter, args=(table,))
        alter.start()
        wait_until(lambda: bool(_altering(table)), "ALTER TABLE to wait")
        [[pid]] = _altering(table)
        try:
            with ThreadPoolExecutor() as pool:
                calls = [pool.submit(refusal, table, 2, ticket=ticket), pool.submit(_caught, table.ticket)]
                reported = [call.result() for call in calls]
        finally:
            table.run(f"SELECT pg_terminate_backend({pid}, 10000)")
            alter.join()
    for error in reported:
        assert f"blocked by session {pid}, " in str(error)
        assert f"pg_terminate_backend({pid})" in str(error)
        assert "prepared transaction" not in str(error)


def _alter(table: Branches) -> None:
    with suppress(psycopg.OperationalError):
        table.run(f'ALTER TABLE "{table.job}" ADD COLUMN more int')


def _altering(table: Branches) -> list[tuple[int]]:
    return table.run(
        f"SELECT pid FROM pg_stat_activity WHERE starts_with(query, 'ALTER TABLE \"{table.job}\"') "
        "AND wait_event_type = 'Lock'"
    )


def test_a_prepared_lock_on_the_table_is_named_and_holds_up_the_driver_too(table: Branches) -> None:
    ticket = table.ticket()
    table.foreign(f"their {table.job}", f'LOCK TABLE "{table.job}" IN SHARE MODE')

    wider = ROWS.append(rows().schema.field("id").with_name("more"))
    with ThreadPoolExecutor() as pool:
        task = pool.submit(refusal, table, 1, ticket=ticket)
        driver = pool.submit(_caught, lambda: table.with_(on_schema_change="add_columns").ticket(0, wider))
        reported = [task.result(), driver.result()]
    for error in reported:
        assert isinstance(error, Retryable)
        assert f"blocked by prepared transaction their {table.job}, " in error.what
        assert f"ROLLBACK PREPARED 'their {table.job}'" in error.next
    assert watches() == []


def test_a_deadlock_of_two_partitions_proposes_to_distribute_by_the_key(table: Branches) -> None:
    with live(table, 1, 1) as first, ThreadPoolExecutor() as pool:
        second = table.writer(2)
        second.write(rows(2))
        second._load._copy.write(second._load._encoder.encode(rows(1)))
        waiting = pool.submit(_caught, second.pre_commit)
        wait_until(lambda: bool(_waiting(table)), "the second to wait for the first")
        crosses = f'{first._load.tag} INSERT INTO "{table.job}" VALUES (2)'.encode()
        with psycopg.ClientCursor(first._load.connection) as cursor:
            cursor.execute("SET LOCAL deadlock_timeout = '10min'")  # so that the second one's finds it
            crossing = pool.submit(_caught, lambda: _explained(first, lambda: cursor.execute(crosses)))
            reported = [error for error in (waiting.result(), crossing.result()) if error is not None]
    assert any("deadlock" in str(error.__cause__) for error in reported), reported
    assert any(isinstance(error, Fatal) and 'distribution = "hash(key)"' in str(error) for error in reported), reported


def _explained(writer: TwoPhaseWriter, statement: Callable[[], object]) -> None:
    with writer._load.explained():
        statement()


def _caught(call: Callable[[], object]) -> ExactsinkError | None:
    try:
        call()
    except ExactsinkError as error:
        return error
    return None


def _waiting(table: Branches) -> list[tuple[int]]:
    return table.run(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        f"AND starts_with(query, '/* exactsink {table.job}.')"
    )


def test_a_task_that_was_busy_elsewhere_when_its_lock_did_not_come_names_who_may_hold_it(table: Branches) -> None:
    older = replace(table, generation=1).prepare(0, 1)
    writer = table.with_(lock_timeout_seconds=0.05).writer(0)
    load = writer._load  # past the watch: the task is busy with something else while the server waits
    load._copy.write(load._encoder.encode(rows(*range(1, 200_000))))
    pid = load.connection.info.backend_pid
    state = f"SELECT state FROM pg_stat_activity WHERE pid = {pid}"
    wait_until(lambda: table.run(state) == [("idle in transaction (aborted)",)], "the server to give up")
    with pytest.raises(Retryable, match="a lock did not come in time") as refused:
        writer.pre_commit()
    assert f"may hold it: prepared transaction {older.txn.id}, " in refused.value.why


class _Ticks(threading.Event):
    """Counts how often it was waited for."""

    count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return super().wait(timeout)


def test_only_a_call_that_lasts_is_looked_at(table: Branches) -> None:
    watch, ticks, asked = LockWatch(table.options.server, 0, 0.02), _Ticks(), []
    watch._closed = ticks
    watch._ask = lambda *_, **__: asked.append("asked") or []  # type: ignore[method-assign, func-returns-value]
    with watch.working():
        pass
    wait_until(lambda: ticks.count > 5, "the watch to pass by")
    assert asked == []
    with watch.working():
        wait_until(lambda: bool(asked), "the watch to look")
    watch.close()
    assert watches() == []


def test_an_earlier_lock_is_not_named_for_a_later_one(table: Branches) -> None:
    """The first wait ends well; the second one's holder alone is named."""
    first = replace(table, generation=1).prepare(0, 1)
    second = replace(table, generation=1).prepare(1, 2)
    writer = table.writer(0)
    with ThreadPoolExecutor() as pool:
        writer.write(rows(1, 2))
        refused = pool.submit(_caught, writer.pre_commit)
        wait_until(lambda: writer._load._watch.blocker is not None, "the first holder to be seen")
        table.end("ROLLBACK", first.txn.id)
        error = refused.result()
    assert error is not None
    assert f"blocked by prepared transaction {second.txn.id}, " in error.what
