"""Rows that delete: the last of a key wins, deletes included, in one transaction with the marker; none is silent."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.test_upsert_values import TYPES
from tests.unit.upsert_sink import SCHEMA, Sink, upsert

from exactsink.contract import Committed, ConfigError, Fatal
from exactsink_idempotent_upsert.table import DELETED

WHEN = "op = 'D'"
WITH_FLAG = SCHEMA.append(pa.field(DELETED, pa.bool_()))
Op = tuple[str, int, str, int]
"""One row as it comes: I or D, the key, its value, its order."""


def batch(*ops: Op) -> pa.RecordBatch:
    rows = [{"id": key, "v": v, "o": o, DELETED: op == "D"} for op, key, v, o in ops]
    return pa.RecordBatch.from_pylist(rows, schema=WITH_FLAG)


def deleting(folder: Path, **options: Any) -> Sink:
    return upsert(folder, delete_when=WHEN, **options)


@pytest.mark.parametrize("name", [name for name in TYPES if name != "nan"])
def test_a_key_of_any_type_meets_its_row_again_and_finds_the_row_to_delete(tmp_path: Path, name: str) -> None:
    kind, given, stored, _ = TYPES[name]
    sink = deleting(tmp_path, keys=("k", "n"))
    for epoch, gone in enumerate((False, False, True), start=1):
        columns = [pa.array([given, given], kind), pa.array([1, 2]), pa.array([epoch] * 2), pa.array([gone, False])]
        sink.run(epoch, pa.RecordBatch.from_arrays(columns, names=["k", "n", "v", DELETED]))
        left = [(stored, n, epoch) for n in ([2] if gone else [1, 2])]
        assert sink.rows("SELECT k, n, v FROM t ORDER BY n") == left


@pytest.mark.parametrize("declared", ["v TEXT COLLATE NOCASE UNIQUE", "v TEXT"])
def test_a_delete_meets_its_row_by_the_equality_of_the_upsert(tmp_path: Path, declared: str) -> None:
    sink = deleting(tmp_path, keys=("v",), create=False)
    sink.sql(f"CREATE TABLE t (id INTEGER, {declared}, o)")
    if "UNIQUE" not in declared:  # an index may compare otherwise than its column does
        sink.sql("CREATE UNIQUE INDEX i ON t (V COLLATE NOCASE)")
    sink.run(1, batch(("I", 1, "ab", 1), ("I", 2, "cd", 1)))
    sink.run(2, batch(("D", 3, "AB", 1)))
    assert sink.rows("SELECT v FROM t") == [("cd",)]


def test_rows_of_keys_only_are_inserted_once_and_deleted(tmp_path: Path) -> None:
    sink = deleting(tmp_path, keys=("id", "v", "o"))
    sink.run(1, batch(("I", 1, "a", 1), ("I", 2, "b", 1), ("I", 1, "a", 1)))
    sink.run(2, batch(("D", 1, "a", 1), ("D", 2, "b", 7), ("I", 2, "b", 1)))
    assert sink.rows() == [(2, "b")]


@pytest.mark.parametrize("order_by", [None, "o"])
def test_a_table_that_keeps_a_deleted_row_stops_with_nothing_lost(tmp_path: Path, order_by: str | None) -> None:
    sink = deleting(tmp_path, order_by=order_by)
    sink.run(1, batch(("I", 1, "a", 1), ("I", 2, "b", 1)))
    votes = sink.vote(2, batch(("I", 1, "c", 1), ("D", 2, "", 1)))
    sink.sql("CREATE TRIGGER keeps BEFORE DELETE ON t WHEN OLD.id = 2 BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(Fatal, match=r"kept a row that a decided epoch deletes(?s:.*)nothing is lost"):
        sink.commit(2, votes)
    assert sink.rows() == [(1, "a"), (2, "b")]
    sink.sql("DROP TRIGGER keeps")
    assert sink.commit(2, votes) == [Committed()]
    assert sink.rows() == [(1, "c")]


@pytest.mark.parametrize("create", [True, False])
def test_neither_the_flag_nor_what_is_excluded_is_a_column_of_the_table(tmp_path: Path, create: bool) -> None:
    sink = deleting(tmp_path, exclude=("o",), order_by="o", create=create)
    if not create:
        sink.sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        (found,) = sink.check(WITH_FLAG)
        assert found.message == "table t has no column v"
        sink.sql(found.fix)
    assert sink.check(WITH_FLAG) == []
    sink.run(1, batch(("I", 1, "late", 2), ("I", 1, "early", 1)))
    assert sink.rows("SELECT * FROM t") == [(1, "late")]
    assert sink.rows("SELECT name FROM pragma_table_info('t')") == [("id",), ("v",)]


def test_rows_without_the_flag_are_refused_before_the_vote(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=f"no column {DELETED}"):
        deleting(tmp_path).vote(1, [(1, "a")])


FRAME = pa.schema([("id", pa.int64()), ("a `name", pa.string()), ("op", pa.string())])


def test_a_null_condition_does_not_delete(tmp_path: Path) -> None:
    """SQLite reads the expressions of a shape as Spark does."""
    shape = upsert(tmp_path, delete_when="op = 'D' -- a remark", exclude=("op",)).backend.shape(FRAME)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE frame (`id`, `a ``name`, `op`)")
        connection.execute("INSERT INTO frame VALUES (1, 'a', 'D'), (2, 'b', 'I'), (3, 'c', NULL)")
        cursor = connection.execute(f"SELECT {', '.join(shape or ())} FROM frame")
        assert [column[0] for column in cursor.description] == ["id", "a `name", DELETED]
        assert cursor.fetchall() == [(1, "a", 1), (2, "b", 0), (3, "c", 0)]


def test_what_is_excluded_is_not_even_staged_unless_it_orders(tmp_path: Path) -> None:
    assert upsert(tmp_path, exclude=("op",)).backend.shape(FRAME) == ["`id`", "`a ``name`"]
    assert upsert(tmp_path, exclude=("op",), order_by="op").backend.shape(FRAME) == ["`id`", "`a ``name`", "`op`"]
    assert upsert(tmp_path).backend.shape(FRAME) is None


def test_a_shape_that_can_not_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`exclude` names column opp, the rows have id, a `name, op"):
        upsert(tmp_path, exclude=("opp",)).backend.shape(FRAME)
    with pytest.raises(ConfigError, match=f"a column is named {DELETED}"):
        deleting(tmp_path).backend.shape(FRAME.append(pa.field(DELETED.upper(), pa.bool_())))
