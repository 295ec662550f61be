"""Upserts into PostgreSQL: which row wins, and what is refused is refused in time."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from exactsink.contract import Committed, Fatal, Finding, JobContext, LineageError, Refused, Retryable, Writer
from exactsink.testing import Session
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.postgres.statements import Statements
from exactsink_postgres.server import Session as Connection
from tests.integration.upserts.other_columns import COLUMNS, TABLE, Row, Target, check_later, later_columns
from tests.servers.postgres import Postgres
from tests.servers.waiting import wait_until

_COUNT = itertools.count()
_TOKEN = "0123456789abcdef"


@pytest.fixture(scope="session")
def upserts(postgres: Postgres) -> str:
    """One database for this worker's upserts, each in a schema of its own."""
    return postgres.create_database(f"upserts_{os.getpid()}_{next(_COUNT)}")  # a file that imports this has its own


class Sink:
    """A schema of a test's own, and a sink that upserts into its table."""

    def __init__(self, url: str) -> None:
        self.schema = f"s{next(_COUNT)}"
        self.url = url
        self.conninfo = url.replace("postgresql+psycopg", "postgresql")
        self._server = psycopg.connect(self.conninfo, autocommit=True)
        self.run(f"CREATE SCHEMA {self.schema}; SET search_path = {self.schema}")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def make(self, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        self.run(f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        for row in rows:
            values = sql.SQL(", ").join(map(sql.Literal, row.values())).as_string(self._server)
            self.run(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values})")

    def backend(self, **given: Any) -> UpsertBackend:
        place = {"url": self.url, "table": f"{self.schema}.{TABLE}", "keys": ("k",), "busy_timeout_seconds": 5}
        return UpsertBackend(UpsertOptions.model_validate({**place, **given}))

    def session(self, given: Mapping[str, Any]) -> Session:
        options = {**given, "table": f"{self.schema}.{TABLE}"}
        made = Session(self.backend(**options), JobContext(f"j-{self.schema}", "out", "", 1, "l1"), _TOKEN)
        made.put_birth()
        return made

    def read(self) -> list[tuple[Any, ...]]:
        return self.run(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}")

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def sink(upserts: str) -> Any:
    with closing(Sink(upserts)) as made:
        yield made


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@later_columns
def test_a_batch_of_other_columns_than_the_table_takes_is_no_epoch(sink: Sink, later: str, strategy: str) -> None:
    check_later(later, Target(sink.session, sink.make, sink.read), strategy)


_ROWS = pa.schema([("k", pa.int64()), ("v", pa.string())])


def _rows(*given: tuple[int | None, str]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "v": v} for k, v in given], schema=_ROWS)


@pytest.mark.parametrize("attempts", [(3, 8), (8, 3)], ids=["in order", "the first partition was tried again"])
def test_the_last_partition_wins_whichever_attempt_wrote_it(sink: Sink, attempts: tuple[int, int]) -> None:
    sink.make(COLUMNS, [])
    mine = sink.session({"table": TABLE})
    ticket = mine.open(1, _ROWS)
    parts = [_rows((1, "first"), (2, "b")), _rows((1, "last"), (3, "c"))]
    votes = [mine.write(1, number, ticket, parts[number], attempts[number]) for number in (1, 0)]
    losing = mine.write(1, 0, ticket, _rows((2, "of an attempt that lost"), (4, "so")), 9)
    assert mine.commit(1, votes) == [Committed()] * 2
    assert sorted(sink.run(f"SELECT k, v FROM {TABLE}")) == [(1, "last"), (2, "b"), (3, "c")]
    assert [participant.ref for participant in mine.listed()] == [losing.ref]


_TRIGGER = f"""
    CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
    CREATE TRIGGER keep BEFORE INSERT OR UPDATE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION keep()
"""


@pytest.mark.parametrize(
    ("there", "trigger", "read_through"), [(300, "", True), (1_000, "", False), (300, _TRIGGER, False)]
)
def test_a_table_of_an_epochs_size_is_read_through_and_a_larger_one_looked_up(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, there: int, trigger: str, read_through: bool
) -> None:
    sink.make({"k": "bigint PRIMARY KEY", "v": "text"}, [])
    sink.run(f"INSERT INTO {TABLE} SELECT generate_series(1, {there}), 'before'; ANALYZE {TABLE}; {trigger}")
    updated, new = range(there - 98, there + 1, 2), range(there + 1, there + 101)
    mine, run, said = sink.session({"table": TABLE}), Connection.run, list[str]()
    votes = mine.prepare(1, [_rows(*((k, "after") for k in keys)) for keys in (updated, new)])
    monkeypatch.setattr(Connection, "run", lambda self, text, *given: said.append(text) or run(self, text, *given))
    assert mine.commit(1, votes) == [Committed()] * 2
    assert ("SET LOCAL enable_nestloop = off" in said) is read_through
    assert sink.run(f"SELECT k FROM {TABLE} WHERE v = 'after' ORDER BY k") == [(k,) for k in (*updated, *new)]
    assert sink.run(f"SELECT count(*) FROM {TABLE}") == [(there + 100,)]


def test_a_vote_of_a_later_release_is_refused_before_the_decision(sink: Sink) -> None:
    sink.make(COLUMNS, [])
    mine = sink.session({"table": TABLE})
    [vote] = mine.prepare(1, [_rows((1, "a"))])
    mine.check_votes(1, _ROWS, [vote])
    with pytest.raises(Fatal, match="version"):
        mine.check_votes(1, _ROWS, [replace(vote, version=vote.version + 1)])


def test_a_key_that_another_transaction_inserts_meanwhile_is_updated(sink: Sink) -> None:
    sink.make(COLUMNS, [])
    mine = sink.session({"table": TABLE})
    votes = mine.prepare(1, [_rows((1, "a"), (2, "b"))])
    with psycopg.connect(sink.conninfo) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"INSERT INTO {sink.schema}.{TABLE} VALUES (2, 'theirs', 5)".encode())
        committing = pool.submit(mine.commit_marked, 1, votes)
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'MERGE INTO%'"
        wait_until(lambda: bool(sink.run(waits)), "the commit to meet the other's key")
        other.commit()
        assert committing.result() == [Committed()]
    assert sorted(sink.run(f"SELECT k, v, n FROM {TABLE}")) == [(1, "a", None), (2, "b", 5)]


def test_rows_that_the_table_refuses_are_refused_before_the_decision(sink: Sink) -> None:
    sink.run(f"CREATE TABLE {TABLE} (k bigint UNIQUE, v text CHECK (v <> ''))")
    mine = sink.session({"table": TABLE})
    for broken, said in (((None, "a"), f"{sink.schema}.t, column k"), ((1, ""), "constraint t_v_check")):
        with pytest.raises(Fatal, match=said):
            mine.prepare(1, [_rows((7, "b"), broken)])
    assert sink.run(f"SELECT * FROM {TABLE}") == []


def _found(sink: Sink, severity: str, **given: Any) -> list[Finding]:
    with closing(sink.backend(**given).committer(JobContext("j", "out", "", 1, "l1"))) as committer:
        return [finding for finding in committer.check(_ROWS, 1) if finding.severity == severity]


def test_tables_and_columns_may_have_any_name_and_are_made_with_their_keys(sink: Sink) -> None:
    rows = pa.table({"select": [1, 1], 'a "b" %s': ["old", "new"]})
    given = {"table": f'{sink.schema}."Order ""x"" %s"', "keys": ("select",), "create": True}
    mine = Session(sink.backend(**given), JobContext(f"j-{sink.schema}", "out", "", 1, "l1"), _TOKEN)
    mine.put_birth()
    assert mine.commit_marked(1, mine.prepare(1, [rows])) == [Committed()]
    assert sink.run('SELECT * FROM "Order ""x"" %s"') == [(1, "new")]


_ORDERS = (["B", "a", None], [-1, 2, None], [1.5, 1e300, -0.5], [Decimal("9.50"), Decimal("11.00"), None])
_ORDERS += ([False, True, None], [*(dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc) for year in (2026, 2027)), None])


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@pytest.mark.parametrize("order", _ORDERS, ids=lambda order: type(order[0]).__name__)
def test_a_column_that_only_orders_is_not_stored(sink: Sink, strategy: str, order: list[Any]) -> None:
    """Texts are ordered by their bytes, whatever the collation is."""
    guard = ", exactsink_epoch bigint, exactsink_generation bigint" * (strategy == "direct")
    sink.run(f'CREATE TABLE {TABLE} (k bigint PRIMARY KEY, v text, o text COLLATE "en-x-icu"{guard})')
    mine = sink.session({"table": TABLE, "order_by": "o", "exclude": ("o",)[order[0] == "B" :], "strategy": strategy})
    rows = pa.table({"k": [1, 1, 1], "v": ["second", "third", "first"], "o": order})
    assert mine.commit_marked(1, mine.prepare(1, [rows])) == [Committed()]
    assert sink.run(f"SELECT k, v FROM {TABLE}") == [(1, "third")]


def _direct(sink: Sink, **given: Any) -> Session:
    return sink.session({"table": TABLE, "strategy": "direct", "busy_timeout_seconds": 0.5, **given})


def _task(made: Session, epoch: int, *given: tuple[int | None, str]) -> Writer:
    """Return a task that has taken its rows, and has not yet voted."""
    ticket = made.open(epoch, _ROWS)
    writer = made.backend.writer(made.txn(epoch, 0, 100 + made.ctx.generation), _ROWS, ticket)
    writer.write(_rows(*given).to_batches()[0])
    return writer


_GUARDED = f"CREATE TABLE {TABLE} (k bigint PRIMARY KEY, v text, exactsink_epoch bigint, exactsink_generation bigint)"


def test_a_late_task_keeps_nothing_nor_does_one_of_a_decided_epoch_whose_keys_are_gone(sink: Sink) -> None:
    sink.run(_GUARDED)
    first = _direct(sink)
    late, later = (_task(first, 1, (1, "late"), (9, "of no newer row's key")) for _ in range(2))
    second = replace(first, ctx=replace(first.ctx, generation=2))
    votes = second.prepare(1, [_rows((1, "a"))])
    with pytest.raises(Refused, match="epoch 1 of generation 2 is there, this task is of generation 1"):
        late.pre_commit()
    assert second.commit_marked(1, votes) == [Committed()]
    sink.run(f"DELETE FROM {TABLE}")
    with pytest.raises(Refused, match="the mark of epoch 1 is there"):
        later.pre_commit()
    assert sink.run(f"SELECT * FROM {TABLE}") == []


def test_an_epoch_is_not_marked_while_a_task_writes_for_it(sink: Sink) -> None:
    """The task has seen no mark: a row that somebody deletes after the mark would come back."""
    sink.run(f"{_GUARDED}; INSERT INTO {TABLE} VALUES (2, 'theirs')")
    mine = _direct(sink)
    votes = mine.prepare(1, [_rows((1, "a"))])
    late = _task(_direct(sink, busy_timeout_seconds=30), 1, (2, "b"))
    with psycopg.connect(sink.conninfo) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"SELECT FROM {sink.schema}.{TABLE} FOR UPDATE".encode())
        voting = pool.submit(late.pre_commit)
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO%'"
        wait_until(lambda: bool(sink.run(waits)), "the task to meet the other's lock")
        with pytest.raises(Retryable, match="blocked by session"):
            mine.commit_marked(1, votes)
        other.rollback()
        voting.result()
    assert mine.commit_marked(1, votes) == [Committed()]


def test_an_error_that_nobody_foresaw_leaves_a_decided_epoch_as_it_is(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.run(f"CREATE TABLE {TABLE} (k bigint PRIMARY KEY)")
    mine = sink.session({"table": TABLE})
    votes = mine.prepare(1, [pa.table({"k": [1]})])
    with monkeypatch.context() as patch:
        patch.setattr(Statements, "merge", Mock(side_effect=UnicodeDecodeError("utf-8", b"", 0, 1, "planted")))
        with pytest.raises(Fatal, match=r"planted.* decided .* staged.*\n.* start the job"):
            mine.commit_marked(1, votes)
    assert mine.commit_marked(1, votes) == [Committed()]


def test_a_table_has_one_sink_that_writes_it_directly(sink: Sink) -> None:
    sink.run(f"CREATE TABLE {TABLE} (k bigint PRIMARY KEY, v text)")
    found = _found(sink, "error", strategy="direct")
    assert ["no column exactsink_" in error.message for error in found] == [True, True]
    sink.run(" ".join(error.fix.partition(";")[0] + ";" for error in found))
    assert _found(sink, "error", strategy="direct") == []
    late = _task(_direct(sink), 1, (1, "a"))
    [error] = _found(sink, "error", strategy="direct")  # of another job
    assert "belongs to sink out of job" in error.message
    other = sink.backend(strategy="direct").committer(JobContext("other", "out", "", 1, "l2"))
    with pytest.raises(LineageError, match="belongs to sink out of job"):
        other.open_epoch(1, _ROWS, 1)
    sink.run(error.fix.partition("run: ")[2])
    with pytest.raises(Refused, match="table's owner record"):
        late.pre_commit()
    other.open_epoch(1, _ROWS, 1)
    other.close()


def test_check_names_the_other_table_of_a_foreign_key(sink: Sink) -> None:
    sink.run(f"CREATE TABLE kinds (v text PRIMARY KEY); {_GUARDED.replace('v text', 'v text REFERENCES kinds')}")
    sink.run(f"CREATE TABLE lines (k bigint REFERENCES {TABLE})")
    staged = _found(sink, "warning", delete_when="v IS NULL")
    parent = [finding for finding in staged if "foreign key t_v_fkey is checked only" in finding.message]
    child = [finding for finding in staged if "lines has foreign key lines_k_fkey" in finding.message]
    assert [finding.fix.partition(" on this")[0] for finding in parent + child] == [
        f'if another sink of this job feeds {sink.schema}.kinds, set after = "..." (its name)',
        f'also delete from {sink.schema}.lines; if a sink of this job does, set after = "..." (its name)',
    ]
    direct = [finding.message for finding in _found(sink, "warning", strategy="direct")]
    assert [f"foreign key t_v_fkey to {sink.schema}.kinds" in message for message in direct].count(True) == 1
