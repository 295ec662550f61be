"""Upserts into SQLite: other columns, and names may be any."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Finding
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.table import DELETED
from tests.integration.upserts.other_columns import Target, check_later, later_columns, target
from tests.unit.upsert_sink import upsert


def target_of(folder: Path) -> Target:
    file = upsert(folder).file

    def sql(statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    return target(lambda given: upsert(folder, **given), sql)


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@later_columns
def test_a_batch_of_other_columns_than_the_table_takes_is_no_epoch(tmp_path: Path, later: str, strategy: str) -> None:
    check_later(later, target_of(tmp_path), strategy)


ODD = ["select", "Odd Name", "a.b", 'q"t', "`it's`", "\u00dcbung", "(100%)", "Stra\u00dfe:?1"]


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_any_name_goes_all_the_way(tmp_path: Path, odd: str, strategy: str) -> None:
    """Of the table, its key, a column that counts, one that is added, and one with constraints."""
    count, staged = odd + "2", strategy == "staged"
    options: dict[str, Any] = {"strategy": strategy, "keys": (odd,), "on_schema_change": "add_columns"}
    if staged:
        counted = f"{quoted(odd, count)} + excluded.{quoted(count)}"
        options |= {"delete_when": "true", "set": {count: counted}}
    schema = pa.schema([(odd, pa.string()), (count, pa.int64()), *([(DELETED, pa.bool_())] if staged else [])])
    sink = upsert(tmp_path, table=quoted(odd), **options)

    def given(*rows: tuple[Any, ...], more: str = "") -> pa.Table:
        table = pa.table(list(map(list, zip(*rows, strict=True)))[: len(schema)], schema=schema)
        return table.append_column(more, pa.array([1] * len(rows))) if more else table

    assert errors(sink.check(schema)) == []
    sink.run(1, given(("a", 1, False), ("b", 2, False)))
    sink.sql(f"CREATE UNIQUE INDEX checked ON {quoted(odd)} ({quoted(odd)}, {quoted(count)} > 0)")
    added = given(("a", 5, False), more=odd + "3")
    assert errors(sink.check(added.schema)) == []
    sink.run(2, added)
    assert sink.rows(f"SELECT * FROM {quoted(odd)} ORDER BY 2")[-1][-1] == 1
    sink.run(3, given(("b", 0, True)))
    other = upsert(tmp_path, "other", table=quoted(odd), **options)
    if strategy == "direct":
        found = other.check(schema)
        assert "belongs to sink table of job orders" in found[0].message
        sink.sql(found[0].fix.partition("run: ")[2])
        assert errors(other.check(schema)) == []
        return
    assert sink.rows(f"SELECT {quoted(odd)}, {quoted(count)} FROM {quoted(odd)}") == [("a", 6)]


def errors(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity == "error"]


def test_two_tables_whose_names_differ_in_no_ascii_letter_have_an_owner_each(tmp_path: Path) -> None:
    """SQLite folds ASCII letters only."""
    for job, table in (("upper", "\u00dcbung"), ("lower", "\u00fcbung")):
        sink = upsert(tmp_path, job, table=table, strategy="direct")
        assert errors(sink.check()) == []
        sink.run(1, [(1, job)])
        assert sink.rows(f'SELECT v FROM "{table}"') == [(job,)]
    columns = pa.schema([("id", pa.int64()), ("\u00dc", pa.int64()), ("\u00fc", pa.int64())])
    both = upsert(tmp_path, "columns", table="both")
    assert both.check(columns) == []
    both.run(1, pa.table([[1], [2], [3]], schema=columns))
    taken = upsert(tmp_path, "taken", table="\u00dcBUNG", strategy="direct").check()
    assert "belongs to sink table of job upper" in taken[0].message
