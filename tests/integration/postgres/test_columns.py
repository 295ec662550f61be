"""Arrow values on the real server, read back by psycopg: each family of types, with NULLs, slices and empty batches."""

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

from exactsink_postgres.encoder import RowEncoder
from exactsink_postgres.options import TableName, quoted
from exactsink_postgres.tables import Table, chosen_columns, problems, read_table
from exactsink_postgres.type_mapping import column_type
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]


def made(connection: psycopg.Connection, columns: Mapping[str, str]) -> Table:
    """Make table `t` anew; `place` numbers the rows as they came."""
    connection.execute("DROP TABLE IF EXISTS t")
    listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    connection.execute(f"CREATE TABLE t ({listed}, place bigserial)".encode())
    table = read_table(connection, TableName(None, "t"))
    assert table is not None
    return table


def encoder(table: Table, schema: pa.Schema) -> RowEncoder:
    assert [found for found in problems(table, schema) if found.severity == "error"] == []
    return RowEncoder(str(table), schema, chosen_columns(table, schema))


def filled(connection: psycopg.Connection, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
    rows = encoder(table, batches[0].schema)
    names = ", ".join(map(quoted, rows.names))
    with connection.cursor().copy(f"COPY {table.sql} ({names}) FROM STDIN WITH (FORMAT binary)".encode()) as copy:
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
    """Send values as three batches into a column of a type; give what the first and the last became, which is equal."""
    table = made(connection, {"c": kind})
    filled(connection, table, [pa.record_batch({"c": piece}) for piece in pieces(values)])
    stored = [value for (value,) in read(connection, [what])]
    assert len(stored) == 2 * len(values)
    assert repr(stored[: len(values)]) == repr(stored[len(values) :])
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


@pytest.mark.parametrize("kind", ["int2", "int4", "int8", "numeric", "numeric(3,0)", "float4", "float8"])
@pytest.mark.parametrize("arrow", ["int8", "int16", "int32", "int64", "uint8", "uint64"])
def test_whole_numbers_go_into_any_number_that_holds_them(
    connection: psycopg.Connection, arrow: str, kind: str
) -> None:
    numbers = [0, None, 127, 1, None] + ([] if arrow.startswith("u") else [-128])
    assert round_trip(connection, kind, pa.array(numbers, arrow)) == numbers


@pytest.mark.parametrize(("kind", "bits"), [("int2", 16), ("int4", 32), ("int8", 64)])
def test_the_last_numbers_of_a_range_are_kept(connection: psycopg.Connection, kind: str, bits: int) -> None:
    ends = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
    assert round_trip(connection, kind, pa.array(ends, pa.int64())) == ends
    assert round_trip(connection, kind, pa.array(ends, pa.decimal128(19, 0))) == ends


def test_floats_keep_every_bit_and_go_into_wider_ones(connection: psycopg.Connection) -> None:
    numbers = [0.1, None, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308]
    assert repr(round_trip(connection, "float8", pa.array(numbers, pa.float64()))) == repr(numbers)
    assert math.isnan(round_trip(connection, "float8", pa.array([math.nan]))[0])
    singles = pa.array([0.1, None, math.inf, 1e-45, -3.5], pa.float32())
    assert round_trip(connection, "float4", singles) == singles.to_pylist()
    assert round_trip(connection, "float8", singles) == singles.to_pylist()
    assert round_trip(connection, "float4", pa.array([0.5, None], pa.float16())) == [0.5, None]


@pytest.mark.parametrize("type", [pa.decimal128(38, 18), pa.decimal128(20, 3), pa.decimal256(50, 3)])
@pytest.mark.parametrize("kind", ["numeric", "numeric(30,18)", "numeric(12,3)", "price", "numeric(1000,500)"])
def test_decimals_keep_every_digit(connection: psycopg.Connection, type: pa.DataType, kind: str) -> None:
    numbers = [Decimal("0"), None, Decimal("1234567.25"), Decimal("0.01"), Decimal("10000"), Decimal("9999999.99")]
    assert round_trip(connection, kind, pa.array(numbers, type)) == numbers


def test_decimals_at_the_ends_of_their_type_are_kept(connection: psycopg.Connection) -> None:
    numbers = [Decimal("-0." + "0" * 37 + "1"), Decimal("0." + "9" * 38), None]
    assert round_trip(connection, "numeric", pa.array(numbers, pa.decimal128(38, 38))) == numbers
    thousands = pa.array([Decimal("-12000"), None], pa.decimal128(5, -3))
    for kind in ("numeric", "numeric(5,-3)", "numeric(9,2)", "bigint"):
        assert round_trip(connection, kind, thousands) == [-12000, None]


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("kind", ["text", "varchar", "varchar(3000)", "citext"])
def test_texts_come_back_as_they_were(connection: psycopg.Connection, type: pa.DataType, kind: str) -> None:
    assert round_trip(connection, kind, pa.array(WORDS, type), "c::text") == WORDS
    assert round_trip(connection, kind, pa.array(WORDS).dictionary_encode(), "c::text") == WORDS


def test_texts_go_into_char_enum_json_and_uuid(connection: psycopg.Connection) -> None:
    assert round_trip(connection, "char(3)", pa.array(["a", None, "äöü"])) == ["a  ", None, "äöü"]
    assert round_trip(connection, "mood", pa.array(["ok", None, "sad"]), "c::text") == ["ok", None, "sad"]
    documents = ['{"b": [1.50, null], "a": "☃"}', None, "3"]
    for kind in ("json", "jsonb"):
        for arrow in (pa.string(), pa.large_string(), pa.string_view()):
            found = round_trip(connection, kind, pa.array(documents, arrow))
            assert found == [document and json.loads(document) for document in documents]
    spellings = [str(U1), None, U2.hex.upper(), f"{{{U1}}}", "ffffffff-00000000-00000000-00000001"]
    for arrow in (pa.string(), pa.large_string(), pa.string_view()):
        assert round_trip(connection, "uuid", pa.array(spellings, arrow)) == [U1, None, U2, U1, U2]


def test_bytes_go_into_bytea_and_uuid(connection: psycopg.Connection) -> None:
    values = [b"\0\xff", None, b"", bytes(1000)]
    for arrow in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert round_trip(connection, "bytea", pa.array(values, arrow)) == values
        assert round_trip(connection, "uuid", pa.array([U1.bytes, None, U2.bytes], arrow)) == [U1, None, U2]
    fixed = pa.array([U1.bytes, None, U2.bytes], pa.binary(16))
    assert round_trip(connection, "bytea", fixed) == [U1.bytes, None, U2.bytes]
    assert round_trip(connection, "uuid", fixed) == [U1, None, U2]


def test_days_and_moments_are_kept(connection: psycopg.Connection) -> None:
    days = [date(1970, 1, 1), None, date.min, date.max]
    assert round_trip(connection, "date", pa.array(days, pa.date32())) == days
    assert round_trip(connection, "date", pa.array(days, pa.date64())) == days
    moments = [MOMENT, None, OLD, NEW]
    assert round_trip(connection, "timestamp", pa.array(moments, pa.timestamp("us"))) == moments
    zoned = [moment and moment.replace(tzinfo=timezone.utc) for moment in moments]
    for zone in ("UTC", "Asia/Kolkata"):
        assert round_trip(connection, "timestamptz", pa.array(zoned, pa.timestamp("us", zone))) == zoned
    for unit in ("s", "ms", "ns"):
        assert round_trip(connection, "timestamp", pa.array([NEW, None], pa.timestamp(unit))) == [NEW, None]
        assert round_trip(connection, "timestamp(0)", pa.array([NEW, None], pa.timestamp(unit))) == [NEW, None]


def test_times_and_spans_are_kept(connection: psycopg.Connection) -> None:
    times = [time(0), None, time(23, 59, 59, 999_999)]
    assert round_trip(connection, "time", pa.array(times, pa.time64("us"))) == times
    assert round_trip(connection, "time", pa.array(times, pa.time64("ns"))) == times
    assert round_trip(connection, "time(3)", pa.array([time(1, 2, 3, 4000), None], pa.time32("ms"))) == [
        time(1, 2, 3, 4000),
        None,
    ]
    spans = [timedelta(0), None, timedelta(days=400, microseconds=1), timedelta(seconds=-1)]
    assert round_trip(connection, "interval", pa.array(spans, pa.duration("us"))) == spans
    assert round_trip(connection, "interval(0)", pa.array(spans[:2], pa.duration("ms"))) == spans[:2]


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
