"""Upserts into PostgreSQL: the options mean what they do on a dictionary, and what is refused is refused in time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from exactsink.contract import Committed, Fatal, Finding, JobContext
from exactsink.testing import Session
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions
from tests.integration.upserts.meaning import CASES, COLUMNS, TABLE, Case, Row, Target, check, few_cases
from tests.servers.postgres import Postgres
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures"]

_COUNT = itertools.count()
_TOKEN = "0123456789abcdef"


@pytest.fixture(scope="session")
def upserts(postgres: Postgres) -> str:
    """One database for this worker's upserts, each in a schema of its own."""
    name = f"upserts_{os.getpid()}"
    return postgres.create_database(name)


class Sink:
    """A schema of a test's own, and a sink that upserts into its table."""

    def __init__(self, url: str) -> None:
        self.schema = f"s{next(_COUNT)}"
        self._url = url
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
        place = {"url": self._url, "table": f"{self.schema}.{TABLE}", "keys": ("k",), "busy_timeout_seconds": 5}
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
    made = Sink(upserts)
    yield made
    made.close()


_STAGED = [case for case in CASES if case.options["strategy"] == "staged"]


@pytest.mark.parametrize("case", _STAGED, ids=str)
def test_options_mean_what_they_do_on_a_dictionary(sink: Sink, case: Case) -> None:
    check(case, Target(sink.session, sink.make, sink.read))


@few_cases("direct")
def test_options_of_direct_mean_the_same(sink: Sink, case: Case) -> None:
    check(case, Target(sink.session, sink.make, sink.read))


_ROWS = pa.schema([("k", pa.int64()), ("v", pa.string())])


def _rows(*given: tuple[int | None, str]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "v": v} for k, v in given], schema=_ROWS)


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


def test_check_names_what_an_upsert_needs_and_what_is_checked_too_late(sink: Sink) -> None:
    sink.run(f"CREATE TABLE {TABLE} (k bigint, v text UNIQUE)")
    [error] = _found(sink, "error")
    assert "no unique index is over the keys k" in error.message
    sink.run(error.fix)
    assert _found(sink, "error") == []
    [warning] = _found(sink, "warning")
    assert "unique index t_v_key is checked only when a decided epoch is applied" in warning.message


def _found(sink: Sink, severity: str) -> list[Finding]:
    committer = sink.backend().committer(JobContext("j", "out", "", 1, "l1"))
    try:
        return [finding for finding in committer.check(_ROWS, 1) if finding.severity == severity]
    finally:
        committer.close()


def test_tables_and_columns_may_have_any_name_and_are_made_with_their_keys(sink: Sink) -> None:
    rows = pa.table({"select": [1, 1], 'a "b" %s': ["old", "new"]})
    given = {"table": f'{sink.schema}."Order ""x"" %s"', "keys": ("select",), "create": True}
    mine = Session(sink.backend(**given), JobContext(f"j-{sink.schema}", "out", "", 1, "l1"), _TOKEN)
    mine.put_birth()
    assert mine.commit_marked(1, mine.prepare(1, [rows])) == [Committed()]
    assert sink.run('SELECT * FROM "Order ""x"" %s"') == [(1, "new")]


def test_a_column_that_only_orders_is_not_stored(sink: Sink) -> None:
    sink.run(f"CREATE TABLE {TABLE} (k bigint PRIMARY KEY, v text)")
    mine = sink.session({"table": TABLE, "order_by": "o", "exclude": ("o",)})
    rows = pa.table({"k": [1, 1, 1], "v": ["second", "third", "first"], "o": ["b", "c", None]})
    assert mine.commit_marked(1, mine.prepare(1, [rows])) == [Committed()]
    assert sink.run(f"SELECT * FROM {TABLE}") == [(1, "third")]
