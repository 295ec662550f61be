"""A task that waits for a lock fails in time, and names who holds it: a right name, and what ends that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from exactsink.contract import ExactsinkError, Fatal, InDoubt, Retryable, Txn
from exactsink_postgres.load import LoadingWriter
from exactsink_postgres.locks import LockWatch, Waiting
from tests.integration.postgres.sinks import ROWS, Branches, rows
from tests.servers.postgres import wait_until


@pytest.fixture
def table(branches: Branches) -> Branches:
    """A job's second generation, its table, and a lock timeout that leaves time to look."""
    return replace(branches.table().with_(lock_timeout_seconds=1), generation=2)


@contextmanager
def live(branches: Branches, partition: int, *ids: int) -> Iterator[LoadingWriter]:
    """A participant whose rows are at the server, and have not been voted for."""
    writer = branches.writing(partition, *ids)
    writer.finish()
    try:
        yield writer
    finally:
        writer.abort()


def caught(call: Callable[[], object]) -> ExactsinkError | None:
    try:
        call()
    except ExactsinkError as error:
        return error
    return None


def refusal(branches: Branches, *ids: int, attempt: int = 9) -> ExactsinkError | None:
    """Write rows that are locked; return what the task says."""
    return caught(lambda: branches.writing(0, *ids, attempt=attempt).pre_commit())


def test_every_holder_of_a_key_is_named_and_reported_how_it_ends(table: Branches) -> None:
    """One key for each case, so that they wait side by side; each looks within its timeout who holds it."""
    table = table.with_(lock_timeout_seconds=5)
    older = replace(table, generation=1).prepare(0, 1)
    other = replace(table, job=f"{table.job}-else", given=(*table.given, ("table", f'"{table.job}"'))).prepare(0, 2)
    table.foreign(f"somebody's {table.job}", f"""INSERT INTO "{table.job}" VALUES (3)""")
    newer = replace(table, generation=3).prepare(0, 4)
    earlier = table.prepare(0, 5, attempt=1)
    sibling = table.prepare(7, 6)
    sink = replace(table, sink="twin").prepare(0, 7)
    with live(table, 8, 8) as working, ThreadPoolExecutor() as pool:
        pid = working.session.info.backend_pid
        reported = list(pool.map(lambda key: refusal(table, key, attempt=100 + key), range(1, 9)))

    expected: dict[int, tuple[type[ExactsinkError], str, str]] = {
        1: (Retryable, f"prepared transaction {older.txn.id}", "an earlier driver of this job began it"),
        2: (Retryable, f"prepared transaction {other.txn.id}", f"start job {table.job}-else"),
        3: (Retryable, f"prepared transaction somebody's {table.job}", f"ROLLBACK PREPARED 'somebody''s {table.job}'"),
        4: (Retryable, f"prepared transaction {newer.txn.id}", "another driver has claimed this job"),
        5: (Retryable, f"prepared transaction {earlier.txn.id}", "an earlier attempt of this job"),
        6: (Fatal, f"prepared transaction {sibling.txn.id}", 'distribution = "hash(key)"'),
        7: (Fatal, f"prepared transaction {sink.txn.id}", "sinks twin and out"),
        8: (Fatal, f"session {pid} of {table.txn(8).id}", 'distribution = "hash(key)"'),
    }
    for key, (kind, holder, fix) in expected.items():
        error = reported[key - 1]
        assert isinstance(error, kind), (key, str(error))
        assert f"blocked by {holder}, " in error.what
        assert fix in str(error), (key, str(error))


def test_what_a_participant_holds_up_is_named_table_waiting_session_and_vacuum(table: Branches) -> None:
    """A prepared one, and one that still writes; what is not there holds up nothing."""
    prepared = table.prepare(0, 1)
    waits = "SELECT pid FROM pg_stat_activity WHERE application_name = 'somebody' AND wait_event_type = 'Lock'"
    name = make_conninfo(table.conninfo, application_name="somebody")
    key = f"""INSERT INTO "{table.job}" VALUES (1) ON CONFLICT DO NOTHING""".encode()
    with live(table, 8, 8) as writing, psycopg.connect(name) as session, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.execute, key)
        try:
            wait_until(lambda: bool(table.run(waits)), "a session to wait for the key")
            said = " ".join(blocked(table, prepared.txn))
            for part in (
                "VACUUM keeps",
                f'RowExclusiveLock on table "{table.job}"',
                f"session {session.info.backend_pid} of",
            ):
                assert part in said
            assert "(somebody) waits for it since" in said
            said = " ".join(blocked(table, table.txn(8)))
            assert f"session {writing.session.info.backend_pid} still writes for it" in said
            assert "VACUUM" not in said
        finally:
            table.end("COMMIT", prepared.txn.id)
            waiting.result(60)
    assert blocked(table, prepared.txn) == blocked(table, replace(table.txn(0), job="other")) == []


def blocked(branches: Branches, txn: Txn) -> Sequence[str]:
    with branches.committer() as committer:
        return committer.blocks(InDoubt.of(txn))


def test_a_table_lock_is_named_by_the_mode_that_blocks_and_a_harmless_orphan_is_not(table: Branches) -> None:
    replace(table, job=f"{table.job}-else", given=(*table.given, ("table", f'"{table.job}"'))).prepare(0, 1)
    table.foreign(f"their {table.job}", f'LOCK TABLE "{table.job}" IN SHARE UPDATE EXCLUSIVE MODE')
    altering = f"SELECT pid FROM pg_stat_activity WHERE starts_with(query, 'ALTER TABLE \"{table.job}\"') "
    altering += "AND wait_event_type = 'Lock'"
    with psycopg.connect(table.conninfo) as session:
        session.execute(f'LOCK TABLE "{table.job}" IN ROW EXCLUSIVE MODE'.encode())
        # ALTER waits for all three of them; a task's rows wait behind ALTER alone.
        alter = threading.Thread(target=_alter, args=(table,))
        alter.start()
        wait_until(lambda: bool(table.run(altering)), "ALTER TABLE to wait")
        [[pid]] = table.run(altering)
        try:
            error = refusal(table, 2)
        finally:
            table.run(f"SELECT pg_terminate_backend({pid}, 10000)")
            alter.join()
    assert f"blocked by session {pid}, " in str(error)
    assert f"pg_terminate_backend({pid})" in str(error)
    assert "prepared transaction" not in str(error)


def _alter(table: Branches) -> None:
    with suppress(psycopg.OperationalError):
        table.run(f'ALTER TABLE "{table.job}" ADD COLUMN more int')


def test_a_prepared_lock_on_the_table_is_named_and_holds_up_the_driver_too(table: Branches) -> None:
    ticket = table.ticket()
    table.foreign(f"their {table.job}", f'LOCK TABLE "{table.job}" IN SHARE MODE')
    wider = ROWS.append(ROWS.field("id").with_name("more"))
    with ThreadPoolExecutor() as pool:
        task = pool.submit(caught, lambda: table.writer(table.txn(0), ticket, (1, "a")).pre_commit())
        driver = pool.submit(caught, lambda: table.with_(on_schema_change="add_columns").ticket(0, wider))
        reported = [task.result(), driver.result()]
    for error in reported:
        assert isinstance(error, Retryable)
        assert f"blocked by prepared transaction their {table.job}, " in error.what
        assert f"ROLLBACK PREPARED 'their {table.job}'" in error.next


def test_a_deadlock_of_two_partitions_proposes_to_distribute_by_the_key(table: Branches) -> None:
    waiting_for = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
    waiting_for += f"AND starts_with(query, '/* exactsink {table.job}.')"
    with live(table.with_(lock_timeout_seconds=20), 1, 1) as first, ThreadPoolExecutor() as pool:
        second = table.with_(lock_timeout_seconds=20).writing(2, 2, 1)
        waiting = pool.submit(caught, second.pre_commit)
        wait_until(lambda: bool(table.run(waiting_for)), "the second to wait for the first")
        crosses = f'{first.tag} INSERT INTO "{table.job}" VALUES (2)'.encode()
        with psycopg.ClientCursor(first.session) as cursor:
            cursor.execute("SET LOCAL deadlock_timeout = '10min'")  # so that the second one's finds it
            crossing = pool.submit(caught, lambda: _explained(first, lambda: cursor.execute(crosses)))
            reported = [error for error in (waiting.result(), crossing.result()) if error is not None]
    assert any("deadlock" in str(error.__cause__) for error in reported), reported
    assert any(isinstance(error, Fatal) and 'distribution = "hash(key)"' in str(error) for error in reported), reported


def _explained(writer: LoadingWriter, statement: Callable[[], object]) -> None:
    with writer.explained():
        statement()


def test_a_task_that_was_busy_elsewhere_when_its_lock_did_not_come_names_who_may_hold_it(table: Branches) -> None:
    older = replace(table, generation=1).prepare(0, 1)
    writer = table.with_(lock_timeout_seconds=0.05).writing(0)
    # Past the watch: the task is busy with something else while the server waits.
    writer._copy.write(writer._encoder.encode(rows(*range(1, 200_000))))
    state = f"SELECT state FROM pg_stat_activity WHERE pid = {writer.session.info.backend_pid}"
    wait_until(lambda: table.run(state) == [("idle in transaction (aborted)",)], "the server to give up")
    with pytest.raises(Retryable, match="a lock was not granted in time") as refused:
        writer.pre_commit()
    assert f"may hold it: prepared transaction {older.txn.id}, " in refused.value.why


def test_only_a_wait_that_lasts_is_looked_at_and_what_was_seen_before_the_timeout_is_no_holder(table: Branches) -> None:
    clock, asked = [100.0], []

    def connect() -> psycopg.Connection:
        asked.append(clock[0])
        return psycopg.connect(table.conninfo, autocommit=True)

    def waited(*ticks: float) -> None:
        calls = watch.generator(_ticking())
        next(calls)
        for seconds in ticks:
            clock[0] += seconds
            calls.send(0)
        with suppress(StopIteration):
            calls.send(1)

    with (
        psycopg.connect(table.conninfo) as holder,
        psycopg.connect(table.conninfo) as session,
        pytest.MonkeyPatch.context() as patch,
    ):
        pid = holder.info.backend_pid
        patch.setattr("exactsink_postgres.locks.time", SimpleNamespace(monotonic=lambda: clock[0]))
        watch = LockWatch(connect, session.info.backend_pid, 4.0)
        waited(0.9)
        waited()
        assert asked == []
        holder.execute(f'LOCK TABLE "{table.job}"'.encode())
        with ThreadPoolExecutor() as pool:
            blocked = pool.submit(caught_by_server, session, f'LOCK TABLE "{table.job}"')
            waits = f"SELECT 1 FROM pg_locks WHERE pid = {session.info.backend_pid} AND NOT granted"
            wait_until(lambda: bool(table.run(waits)), "the session to wait")
            waited(1.1, 0.5, 0.6)
            holder.rollback()
            assert blocked.result() is None
        assert [moment - asked[0] for moment in asked] == pytest.approx([0.0, 1.1])
        timeout = psycopg.errors.LockNotAvailable()
        clock[0] = asked[1] + 4.0
        assert f"blocked by session {pid}, " in str(watch.error(timeout, Waiting("load", "")))
        clock[0] += 0.1
        assert "did not find who held it" in str(watch.error(timeout, Waiting("load", "", f'"{table.job}"')))


def caught_by_server(session: psycopg.Connection, statement: str) -> psycopg.Error | None:
    try:
        session.execute(statement.encode())
    except psycopg.Error as error:
        return error
    session.rollback()
    return None


def _ticking():  # type: ignore[no-untyped-def]
    while not (yield 1):
        pass


def test_a_check_is_not_held_up_by_a_locked_table(table: Branches) -> None:
    table.foreign(f"their {table.job}", f'LOCK TABLE "{table.job}" IN ACCESS EXCLUSIVE MODE')
    with table.committer() as committer:
        assert [finding for finding in committer.check(ROWS, 4) if finding.severity == "error"] == []
