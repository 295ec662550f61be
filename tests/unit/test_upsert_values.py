"""Every Arrow type that SQLite takes, there and in its order; values that it could not hold stop in the task."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.upsert_sink import upsert

from exactsink.contract import Committed, Fatal
from exactsink_idempotent_upsert.limits import unstorable
from exactsink_idempotent_upsert.sqlite.rows import insert
from exactsink_idempotent_upsert.sqlite.statements import column_type, sort_values, stored_values

UTC_2026 = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.timezone.utc)
NAIVE_2026 = UTC_2026.replace(tzinfo=None)
TYPES: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "bool": (pa.bool_(), True, 1, "BOOLEAN"),
    "int8": (pa.int8(), -128, -128, "BIGINT"),
    "int64": (pa.int64(), -(2**63), -(2**63), "BIGINT"),
    "uint32": (pa.uint32(), 2**32 - 1, 2**32 - 1, "BIGINT"),
    "float16": (pa.float16(), 1.5, 1.5, "DOUBLE"),
    "float32": (pa.float32(), 0.25, 0.25, "DOUBLE"),
    "float64": (pa.float64(), 0.1, 0.1, "DOUBLE"),
    "nan": (pa.float64(), float("nan"), None, "DOUBLE"),
    "string": (pa.string(), "007 äöü \0 '\"", "007 äöü \0 '\"", "TEXT"),
    "large string": (pa.large_string(), "x", "x", "TEXT"),
    "string view": (pa.string_view(), "x", "x", "TEXT"),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "x", "x", "TEXT"),
    "decimal": (pa.decimal128(38, 18), Decimal("1234567890123456789.1"), f"1234567890123456789.1{'0' * 17}", "TEXT"),
    "tiny decimal": (pa.decimal128(38, 18), Decimal(0), "0." + "0" * 18, "TEXT"),
    "seconds": (pa.timestamp("s"), NAIVE_2026.replace(microsecond=0), "2026-01-02T03:04:05.000000", "TEXT"),
    "micros": (pa.timestamp("us"), NAIVE_2026, "2026-01-02T03:04:05.678901", "TEXT"),
    "nanos": (pa.timestamp("ns"), NAIVE_2026, "2026-01-02T03:04:05.678901000", "TEXT"),
    "zoned": (pa.timestamp("us", "Asia/Tokyo"), UTC_2026, "2026-01-02T03:04:05.678901Z", "TEXT"),
    "date32": (pa.date32(), dt.date(1, 1, 1), "0001-01-01", "TEXT"),
    "date64": (pa.date64(), dt.date(9999, 12, 31), "9999-12-31", "TEXT"),
    "time": (pa.time64("us"), dt.time(23, 59, 59, 999999), "23:59:59.999999", "TEXT"),
    "binary": (pa.binary(), b"\0\xff", b"\0\xff", "BLOB"),
    "fixed binary": (pa.binary(2), b"\0\xff", b"\0\xff", "BLOB"),
}


@pytest.mark.parametrize("order_by", [None, "n"])
def test_create_makes_a_table_that_takes_every_type(tmp_path: Path, order_by: str | None) -> None:
    columns = {name: pa.array([given, None], kind) for name, (kind, given, _, _) in TYPES.items()}
    batch = pa.record_batch({"n": pa.array([1, 2], pa.int32()), **columns})
    sink = upsert(tmp_path, keys=("n",), order_by=order_by)
    assert sink.run(1, pa.Table.from_batches([batch, batch])) == [Committed()]
    declared = dict(sink.rows("SELECT name, type FROM pragma_table_info('t')"))
    assert declared == {"n": "BIGINT", **{name: declared for name, (_, _, _, declared) in TYPES.items()}}
    full, empty = sink.rows("SELECT * FROM t ORDER BY n")
    assert dict(zip(TYPES, full[1:], strict=True)) == {name: stored for name, (_, _, stored, _) in TYPES.items()}
    assert empty == (2, *[None] * len(TYPES))


@pytest.mark.parametrize(
    ("type", "ascending"),
    [
        (pa.decimal128(6, 2), [None, Decimal("-100.5"), Decimal("-20"), Decimal(0), Decimal("3"), Decimal("20.01")]),
        (pa.decimal128(38, 0), [Decimal("-9" + "0" * 37), Decimal(-1), Decimal(1), Decimal("9" * 38)]),
        (pa.timestamp("us", "Asia/Tokyo"), [None, UTC_2026.replace(year=1), UTC_2026.replace(microsecond=0), UTC_2026]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(999, 12, 31), dt.date(9999, 12, 31)]),
        (pa.int64(), [None, -(2**63), -1, 0, 2**63 - 1]),
        (pa.string(), ["", "A", "a", "ä", "\U0001f600"]),
    ],
)
def test_order_by_follows_the_types_own_order(tmp_path: Path, type: pa.DataType, ascending: list[Any]) -> None:
    sink = upsert(tmp_path, order_by="o")
    for epoch, shown in enumerate((ascending, ascending[::-1]), start=1):
        sink.run(epoch, pa.record_batch({"id": [1] * len(shown), "o": pa.array(shown, type)}))
        assert sink.rows("SELECT o FROM t") == [(stored_values(pa.array(ascending[-1:], type))[0],)]
    given = [value for value in sort_values(pa.array(ascending, type)) if value is not None]
    assert given == sorted(given)


NO_COLUMN = [pa.uint64(), pa.null(), pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.duration("us")]
NO_COLUMN += [pa.map_(pa.string(), pa.string()), pa.month_day_nano_interval(), pa.dictionary(pa.int8(), pa.uint64())]


@pytest.mark.parametrize("type", NO_COLUMN, ids=str)
def test_types_that_sqlite_cannot_hold(type: pa.DataType) -> None:
    assert column_type(type) is None
    assert "can't hold" in (unstorable(pa.record_batch({"a": pa.array([], type)}), "SQLite", column_type) or "")


BROKEN = {
    "utf-8": pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]),
    "year 10000": pa.array([253402300800 * 10**6], pa.timestamp("us")),
    "year 0": pa.array([None, -62135596801], pa.timestamp("s", "UTC")),
    "date of year 10000": pa.array([2932897], pa.int32()).cast(pa.date32()),
    "in a dictionary": pa.array([253402300800], pa.timestamp("s")).dictionary_encode(),
}


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@pytest.mark.parametrize("name", list(BROKEN))
def test_a_value_that_could_never_be_applied_is_no_vote(tmp_path: Path, name: str, strategy: str) -> None:
    sink = upsert(tmp_path, strategy=strategy)
    batch = pa.record_batch({"id": [1] * len(BROKEN[name]), "v": BROKEN[name]})
    writer = sink.writer(1, 0, batch.schema, sink.open(1, batch.schema))
    with pytest.raises(Fatal, match="can't be stored"):
        writer.write(batch)
    writer.abort()
    assert sink.listed() == []


NULLS = {"null": pa.array([1, None]), "nan": pa.array([1.0, float("nan")])}
NULLS |= {"index": pa.array(["a", None]).dictionary_encode()}
NULLS |= {"dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))}


@pytest.mark.parametrize("keys", NULLS.values(), ids=NULLS)
def test_a_key_that_is_stored_as_null_is_refused(tmp_path: Path, keys: pa.Array) -> None:
    with pytest.raises(Fatal, match=r"key column id is NULL \(or NaN\) in 1 rows"):
        upsert(tmp_path).vote(1, pa.record_batch({"id": keys}))


@pytest.mark.parametrize("missing", ["id", "o"])
def test_rows_without_a_key_or_order_column_are_refused(tmp_path: Path, missing: str) -> None:
    batch = pa.record_batch({"id": [1], "o": [1]}).drop_columns([missing])
    with pytest.raises(Fatal, match=f"no column {missing}"):
        upsert(tmp_path, order_by="o").backend.check_batch(batch)


@pytest.mark.parametrize("total", [1, 299, 300, 1000])
def test_rows_of_several_statements_go_in_whole_and_in_order(total: int) -> None:
    columns = [list(range(total)), [f"v{n}" for n in range(total)], [None] * total]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a, b, c)")
        assert insert(connection, lambda rows: f"INSERT INTO t {rows}", columns) == total
        assert connection.execute("SELECT * FROM t ORDER BY rowid").fetchall() == list(zip(*columns, strict=True))
