"""Arrow values on the real server, read back by psycopg: each family of types, with NULLs, slices and empty batches.

All of them go there in both formats of COPY.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from exactsink.toolkit.sql import quoted
from exactsink_postgres.encoder import RowEncoder
from exactsink_postgres.options import TableName
from exactsink_postgres.tables import Table, chosen_columns, problems, read_table
from exactsink_postgres.type_mapping import column_type
from tests.servers.postgres import Postgres


def made(connection: psycopg.Connection, columns: Mapping[str, str]) -> Table:
    """Make table `t` anew; `place` numbers the rows as they came, and with `net` they go as text."""
    connection.execute("DROP TABLE IF EXISTS t")
    listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    connection.execute(f"CREATE TABLE t ({listed}, place bigserial, net inet)".encode())
    table = read_table(connection, TableName(None, "t"))
    assert table is not None
    return table


def encoder(table: Table, schema: pa.Schema) -> RowEncoder:
    assert [found for found in problems(table, schema) if found.severity == "error"] == []
    return RowEncoder(str(table), schema, chosen_columns(table, schema))


def filled(connection: psycopg.Connection, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
    rows = encoder(table, batches[0].schema)
    names = ", ".join(map(quoted, rows.names))
    with connection.cursor().copy(
        f"COPY {table.sql} ({names}) FROM STDIN WITH (FORMAT {rows.format})".encode()
    ) as copy:
        copy.write(rows.header())
        for batch in batches:
            copy.write(rows.encode(batch))
        copy.write(rows.finish())


def read(connection: psycopg.Connection, what: Iterable[str]) -> list[tuple[Any, ...]]:
    cursor = connection.cursor(binary=True)
    return cursor.execute(f"SELECT {', '.join(what)} FROM t ORDER BY place".encode()).fetchall()


def pieces(values: pa.Array) -> list[pa.Array]:
    """Return values as they are, none of them, and the same again from the middle of an array."""
    around = pa.concat_arrays([values[-2:], values, values[:3]])
    return [values, values[:0], around.slice(len(values[-2:]), len(values))]


def round_trip(connection: psycopg.Connection, kind: str, values: pa.Array, what: str = "c") -> list[Any]:
    """Send values as three batches, in each format; return what they became, each time the same."""
    table = made(connection, {"c": kind})
    filled(connection, table, [pa.record_batch({"c": piece}) for piece in pieces(values)])
    connection.execute("SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'")
    filled(connection, table, [pa.record_batch({"c": p, "net": pa.nulls(len(p))}) for p in pieces(values)])
    connection.execute("SET timezone = 'UTC'; RESET datestyle; RESET intervalstyle")
    stored = [value for (value,) in read(connection, [what])]
    times = [repr(stored[n : n + len(values)]) for n in range(0, len(stored), len(values))]
    assert times == times[:1] * 4
    return stored[: len(values)]


U1, U2 = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), uuid.UUID("ffffffff-0000-0000-0000-000000000001")
MOMENT = datetime(1999, 12, 31, 23, 59, 59, 999_999)
OLD = datetime(1, 1, 1, 0, 0, 0, 1)
ZONED = MOMENT.replace(tzinfo=timezone.utc)
NEW = datetime(2026, 3, 1, 1, 2, 3)
WORDS = ["plain", None, "", "ünïcödé ☃ 𝄞", 'quote " back \\ tab \t', None, "x" * 3000]


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.new_database("columns"), autocommit=True, prepare_threshold=None) as session:
        session.execute("SET timezone = 'UTC'")
        session.execute("CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'ok')")
        session.execute("CREATE DOMAIN cents AS numeric(9,2); CREATE DOMAIN price AS cents CHECK (value >= 0)")
        session.execute("CREATE DOMAIN tags AS varchar(8)[]; CREATE DOMAIN moment AS timestamptz(3)")
        yield session


EIGHTHS = [0, None, 127, 1, None]
FLOATS = [0.1, None, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308]
PRICES = [Decimal("0"), None, Decimal("1234567.25"), Decimal("0.01"), Decimal("10000"), Decimal("9999999.99")]
SMALLEST = [Decimal("-0." + "0" * 37 + "1"), Decimal("0." + "9" * 38), None]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
BYTES = [b"\0\xff", None, b"", bytes(1000)]
MOMENTS = [MOMENT, None, OLD, NEW]
ZONES = [pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Kolkata")]
SPANS = [timedelta(0), None, timedelta(days=400, microseconds=1), timedelta(seconds=-1)]
MICROS, MILLIS = [time(0), None, time(23, 59, 59, 999_999)], [time(1, 2, 3, 4000), None]

# Types of the server and of Arrow, each with each, and values that come back as they were.
KEPT: dict[str, tuple[list[str], list[Any], list[Any]]] = {
    "whole": (
        ["int2", "int4", "int8", "numeric", "numeric(3,0)", "float4", "float8"],
        [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()],
        EIGHTHS,
    ),
    "negative": (["int2", "numeric(3,0)", "float4"], [pa.int8(), pa.int64()], [-128, None]),
    "ends of int2": (["int2"], [pa.int64(), pa.decimal128(19, 0)], [-(2**15), 2**15 - 1]),
    "ends of int4": (["int4"], [pa.int64(), pa.decimal128(19, 0)], [-(2**31), 2**31 - 1]),
    "ends of int8": (["int8"], [pa.int64(), pa.decimal128(19, 0)], [-(2**63), 2**63 - 1]),
    "floats": (["float8"], [pa.float64()], FLOATS),
    "singles": (["float4", "float8"], [pa.float32()], [0.5, None, math.inf, -3.5, -0.0]),
    "halves": (["float4"], [pa.float16()], [0.5, None]),
    "decimals": (
        ["numeric", "numeric(30,18)", "numeric(12,3)", "price", "numeric(1000,500)"],
        [pa.decimal128(38, 18), pa.decimal128(20, 3), pa.decimal256(50, 3)],
        PRICES,
    ),
    "all digits": (["numeric"], [pa.decimal128(38, 38)], SMALLEST),
    "thousands": (["numeric", "numeric(5,-3)", "numeric(9,2)", "bigint"], [pa.decimal128(5, -3)], [-12000, None]),
    "texts": (["text", "varchar", "varchar(3000)", "citext"], TEXTS, WORDS),
    "enums": (["mood"], TEXTS, ["ok", None, "sad"]),
    "char": (["char(3)"], TEXTS, ["äöü", None]),
    "bytes": (["bytea"], [pa.binary(), pa.large_binary(), pa.binary_view()], BYTES),
    "sixteen bytes": (["bytea"], [pa.binary(16)], [U1.bytes, None, U2.bytes]),
    "days": (["date"], [pa.date32(), pa.date64()], [date(1970, 1, 1), None, date.min, date.max]),
    "moments": (["timestamp"], [pa.timestamp("us")], MOMENTS),
    "seconds": (["timestamp", "timestamp(0)"], [pa.timestamp(u) for u in ("s", "ms", "ns")], [NEW, None]),
    "zoned": (["timestamptz"], ZONES, [moment and moment.replace(tzinfo=timezone.utc) for moment in MOMENTS]),
    "times": (["time"], [pa.time64("us"), pa.time64("ns")], MICROS),
    "millis": (["time(3)"], [pa.time32("ms")], MILLIS),
    "spans": (["interval"], [pa.duration("us")], SPANS),
    "whole spans": (["interval(0)"], [pa.duration("ms")], SPANS[:2]),
}


@pytest.mark.parametrize("case", KEPT)
def test_values_come_back_as_they_were(connection: psycopg.Connection, case: str) -> None:
    kinds, types, values = KEPT[case]
    wanted = [Decimal(n) if case == "thousands" and n is not None else n for n in values]
    for kind in kinds:
        what = "c::text" if kind in ("citext", "mood") else "c"
        for arrow in types:
            found = round_trip(connection, kind, pa.array(wanted, arrow), what)
            assert found == values, (kind, arrow)
            assert case != "floats" or repr(found) == repr(values)  # the sign of zero


def test_not_a_number_and_the_least_single_are_kept(connection: psycopg.Connection) -> None:
    assert math.isnan(round_trip(connection, "float8", pa.array([math.nan]))[0])
    singles = pa.array([0.1, 1e-45], pa.float32())
    assert round_trip(connection, "float4", singles) == singles.to_pylist()
    assert round_trip(connection, "float8", singles) == singles.to_pylist()


def test_texts_go_into_char_json_and_uuid_and_bytes_into_uuid(connection: psycopg.Connection) -> None:
    assert round_trip(connection, "char(3)", pa.array(["a", None])) == ["a  ", None]
    documents = ['{"b": [1.50, null], "a": "☃"}', None, "3"]
    spellings = [str(U1), None, U2.hex.upper(), f"{{{U1}}}", "ffffffff-00000000-00000000-00000001"]
    for arrow in TEXTS[:3]:
        for kind in ("json", "jsonb"):
            found = round_trip(connection, kind, pa.array(documents, arrow))
            assert found == [document and json.loads(document) for document in documents]
        assert round_trip(connection, "uuid", pa.array(spellings, arrow)) == [U1, None, U2, U1, U2]
    for arrow in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16)):
        assert round_trip(connection, "uuid", pa.array([U1.bytes, None, U2.bytes], arrow)) == [U1, None, U2]


LISTS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("bool[]", pa.bool_(), [True, False]),
    ("int4[]", pa.int64(), [-(2**31), 7]),
    ("int8[]", pa.int16(), [1, 2]),
    ("float4[]", pa.float32(), [0.5, -1.5]),
    ("float8[]", pa.float64(), [0.1, math.inf]),
    ("numeric[]", pa.decimal128(20, 5), [Decimal("1.5"), Decimal("-100000.00001")]),
    ("numeric(6,2)[]", pa.decimal128(20, 5), [Decimal("1.5"), Decimal("-1000.01")]),
    ("text[]", pa.string(), ["", "ü☃"]),
    ("varchar(4)[]", pa.large_string(), ["", "ü☃"]),
    ("char(2)[]", pa.string(), ["ab", "ü☃"]),
    ("tags", pa.string_view(), ["", "ü☃"]),
    ("jsonb[]", pa.string(), ["[]", "[1]"]),
    ("json[]", pa.string(), ["[]", "[1]"]),
    ("uuid[]", pa.string(), [str(U1), str(U2)]),
    ("uuid[]", pa.binary(16), [U1.bytes, U2.bytes]),
    ("bytea[]", pa.binary(), [b"", b"\0\xff"]),
    ("date[]", pa.date32(), [date.min, date(2026, 1, 1)]),
    ("timestamp[]", pa.timestamp("us"), [MOMENT, OLD]),
    ("timestamptz[]", pa.timestamp("us", "UTC"), [ZONED, OLD.replace(tzinfo=timezone.utc)]),
    ("time[]", pa.time64("ns"), [time(0), time(1, 2, 3, 4)]),
    ("interval[]", pa.duration("us"), [timedelta(days=1), timedelta(microseconds=-1)]),
]


@pytest.mark.parametrize(("kind", "type", "values"), LISTS, ids=[f"{kind} {arrow}" for kind, arrow, _ in LISTS])
def test_lists_become_arrays(connection: psycopg.Connection, kind: str, type: pa.DataType, values: list[Any]) -> None:
    first, second = values
    lists = [[first, None, second], None, [], [second], None, [None], [second, second, second]]
    expected: Any = lists
    if kind in ("jsonb[]", "json[]", "uuid[]"):
        read_as = {values[0]: [] if "json" in kind else U1, values[1]: [1] if "json" in kind else U2}
        expected = [None if row is None else [None if v is None else read_as[v] for v in row] for row in lists]
    what = "c::text[]" if kind == "tags" else "c"
    assert round_trip(connection, kind, pa.array(lists, pa.list_(type)), what) == expected
    assert round_trip(connection, kind, pa.array(lists, pa.large_list(type)), what) == expected
    pairs = pa.array([[first, second], None, [None, first]], pa.list_(type, 2))
    assert round_trip(connection, kind, pairs, what)[1] is None
    assert [len(row) for row in round_trip(connection, kind, pairs, what) if row is not None] == [2, 2]


def test_lists_of_enums_citext_domains_and_encoded_texts(connection: psycopg.Connection) -> None:
    lists = [["ok", None], None, [], ["sad", "ok"]]
    for kind in ("mood[]", "citext[]", "text[]"):
        assert round_trip(connection, kind, pa.array(lists), "c::text[]") == lists
        encoded = pa.ListArray.from_arrays([0, 2, 2, 4], pa.array(["ok", None, "sad", "ok"]).dictionary_encode())
        assert round_trip(connection, kind, encoded, "c::text[]") == [["ok", None], [], ["sad", "ok"]]
    moments = [[ZONED.replace(microsecond=1000), None], None, []]
    assert (
        round_trip(connection, "moment[]", pa.array(moments, pa.list_(pa.timestamp("us", "UTC"))), "c::timestamptz[]")
        == moments
    )


def test_a_list_that_is_null_with_elements_behind_it_is_null(connection: psycopg.Connection) -> None:
    hidden = pa.ListArray.from_arrays([0, 1, 3], pa.array([1, 2, 3]), mask=pa.array([False, True]))
    assert round_trip(connection, "int4[]", hidden) == [[1], None]
    texts = pa.ListArray.from_arrays([0, 1, 3], pa.array(["a", "b", "c"]), mask=pa.array([False, True]))
    assert round_trip(connection, "text[]", texts) == [["a"], None]


def test_nothing_but_null_goes_into_anything(connection: psycopg.Connection) -> None:
    for kind in ("int4", "price", "jsonb", "text[]", "mood", "timestamptz(0)"):
        assert round_trip(connection, kind, pa.nulls(3)) == [None] * 3
    for kind in ("int4[]", "jsonb[]", "mood[]"):
        lists = pa.array([[None], None, []], pa.list_(pa.null()))
        assert round_trip(connection, kind, lists, "c::text[]") == [[None], None, []]


def test_a_null_in_the_dictionary_is_null(connection: psycopg.Connection) -> None:
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert round_trip(connection, "text", hidden) == ["a", None, None]


def test_json_that_the_jvm_made_goes_into_json_and_text(connection: psycopg.Connection) -> None:
    made_there = pa.array([{"json": '{"a": 1.50}'}, {"json": None}, None, {"json": "[1]"}])
    assert column_type(made_there.type) == "jsonb"
    for kind in ("json", "jsonb"):
        assert round_trip(connection, kind, made_there) == [{"a": 1.5}, None, None, [1]]
    assert round_trip(connection, "text", made_there) == ['{"a": 1.50}', None, None, "[1]"]


def test_columns_are_found_by_name_and_odd_names_work(connection: psycopg.Connection) -> None:
    odd = ["b", "a", 'Odd "one"', "with.dot", "Größe", "select", "tick`"]
    table = made(connection, dict.fromkeys(sorted(odd), "text"))
    batch = pa.record_batch({name: pa.array([f"value of {name}", None]) for name in odd})
    filled(connection, table, [batch])
    names = [f'"{name}"' for name in ("b", "a", 'Odd ""one""', "with.dot", "Größe", "select", "tick`")]
    assert read(connection, names) == [tuple(f"value of {name}" for name in odd), (None,) * len(odd)]
