"""Values that the server would cut, round or wrap, or not take: refused in the task, each by name."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Fatal
from exactsink_postgres.encoder import RowEncoder
from exactsink_postgres.type_mapping import Column

NUMERIC_5_2 = (5 << 16 | 2) + 4


def encode(column: Column, values: pa.Array) -> bytes:
    rows = RowEncoder("sales.orders", pa.schema([("price", values.type)]), [column])
    return rows.header() + rows.encode(pa.record_batch({"price": values})) + rows.finish()


def column(type: str, base: str, modifier: int = -1) -> Column:
    array = type.endswith("[]")
    return Column("price", type, base, modifier=modifier, array=array, element=1043 if base == "varchar" else 0)


INT2, INT4, INT8 = column("smallint", "int2"), column("integer", "int4"), column("bigint", "int8")
CENTS, ROUND = column("numeric(5,2)", "numeric", NUMERIC_5_2), column("numeric(3,-2)", "numeric", (3 << 16 | 0x7FE) + 4)
NUMERIC, REAL, DOUBLE = column("numeric", "numeric"), column("real", "float4"), column("double precision", "float8")
TEXT, SHORT, CHAR = column("text", "text"), column("varchar(3)", "varchar", 7), column("character(3)", "bpchar", 7)
UUID, DAY, CLOCK, TO_SECOND = (
    *(column("uuid", "uuid"), column("date", "date")),
    *(column("time", "time"), column("time(0)", "time", 0)),
)
SECONDS, MILLIS = column("timestamp(0) without time zone", "timestamp", 0), column("timestamp(3)", "timestamp", 3)
STAMP, ZONED = column("timestamp without time zone", "timestamp"), column("timestamptz", "timestamptz")
SPAN = column("interval(2)", "interval", 0x7FFF << 16 | 2)
INTS, SHORTS = column("smallint[]", "int2"), column("varchar(3)[]", "varchar", 7)
PRICES = column("numeric(5,2)[]", "numeric", NUMERIC_5_2)
OFFSETS = pa.array([0, 2, 4], pa.int32()).buffers()[1]
BROKEN = pa.Array.from_buffers(pa.string(), 2, [None, OFFSETS, pa.py_buffer(b"ok\xc3(")])
LATE = datetime(2026, 1, 1, 0, 0, 0, 1)
U = "00112233-4455-6677-8899-aabbccddeeff"


def decimals(scale: int, *texts: str) -> pa.Array:
    return pa.array([Decimal(text) for text in texts], pa.decimal128(9, scale))


def raw(type: pa.DataType, *numbers: int) -> pa.Array:
    """Return values by the numbers that stand for them, whether or not Python has such values."""
    return pa.array(numbers, pa.int32() if type.bit_width == 32 else pa.int64()).view(type)


US, NS = pa.timestamp("us"), pa.timestamp("ns")
CASES: list[tuple[Column, pa.Array, str, str]] = [
    (INT2, pa.array([1, 32768, 99999], pa.int64()), "32768", "smallint holds -32768 to 32767"),
    (INT4, pa.array([None, -(2**31), -(2**31) - 1], pa.int64()), "-2147483649", "integer holds -2147483648 to"),
    (INT8, pa.array([2**63], pa.uint64()), "9223372036854775808", "bigint holds"),
    (INT4, pa.array([Decimal("3000000000")], pa.decimal128(10, 0)), "3000000000", "integer holds"),
    (REAL, pa.array([2**24, 2**24 + 1], pa.int32()), "16777217", "real holds fewer digits"),
    (DOUBLE, pa.array([2**53 + 1], pa.int64()), "9007199254740993", "fewer digits"),
    (CENTS, decimals(3, "1.25", "1.255"), "1.255", "numeric(5,2) holds 5 digits, 2 of"),
    (CENTS, decimals(2, "999.99", "1000"), "1000.00", "numeric(5,2) holds 5 digits"),
    (CENTS, pa.array([999, -1000], pa.int32()), "-1000", "numeric(5,2) holds 5 digits"),
    (ROUND, pa.array([1200, 1250]), "1250", "numeric(3,-2) holds"),
    (NUMERIC, pa.array([Decimal("1E+40")], pa.decimal256(50, 0)), "1" + "0" * 40, "over 38 digits"),
    (TEXT, pa.array(["fine", "a\0b"]), r"'a\x00b'", "a zero byte"),
    (TEXT, pa.array(["fine", "a\0b"], pa.string_view()), r"'a\x00b'", "a zero byte"),
    (TEXT, pa.array([{"json": "a\0b"}]), r"'a\x00b'", "a zero byte"),
    (TEXT, BROKEN, r"b'\xc3('", "not UTF-8"),
    (SHORT, pa.array(["abc", "äöü", "abc "]), "'abc '", "varchar(3) holds 3 characters"),
    (SHORT, pa.array(["abc", "x" * 500]), "'" + "x" * 99 + "... (502 characters)", "holds 3 characters"),
    (CHAR, pa.array(["abcd"], pa.large_string()), "'abcd'", "character(3) holds 3"),
    (UUID, pa.array([U, U[:-1]]), f"'{U[:-1]}'", "not a UUID"),
    (UUID, pa.array([U, None, "g" * 32]), f"'{'g' * 32}'", "not a UUID"),
    (UUID, pa.array([f"{{{U}"]), f"'{{{U}'", "not a UUID"),
    (UUID, pa.array([f"{U}\n"]), f"'{U}\\n'", "not a UUID"),
    (UUID, pa.array([b"x" * 16, b"x" * 17]), repr(b"x" * 17), "a UUID has 16 bytes"),
    (SECONDS, pa.array([datetime(2026, 1, 1), LATE]), "2026-01-01 00:00:00.000001", "0 digits"),
    (MILLIS, pa.array([datetime(1969, 1, 1, 0, 0, 0, 1500)]), "1969-01-01 00:00:00.001500", "3 digits of a second's"),
    (STAMP, pa.array([1000, 1001], NS), "1970-01-01 00:00:00.000001001", "holds microseconds"),
    (STAMP, raw(US, 0, -(2**62)), str(-(2**62)), "timestamps go from 4714 BC"),
    (STAMP, raw(US, -(2**63) + 946_684_800_000_000), "", "timestamps go from 4714 BC"),  # else it is -infinity
    (STAMP, raw(US, -210_866_803_200_000_001), "", "timestamps go from 4714 BC"),
    (ZONED, raw(pa.timestamp("us", "UTC"), 0, -(2**62)), str(-(2**62)), "timestamps go from 4714 BC"),
    (STAMP, pa.array([2**62], pa.timestamp("s")), str(2**62), "holds microseconds"),
    (DAY, raw(pa.date32(), -(2**31) + 10957), "-2147472691", "dates go from"),
    (TO_SECOND, pa.array([time(1, 2, 3, 4)]), "01:02:03.000004", "0 digits"),
    (CLOCK, pa.array([1001], pa.time64("ns")), "00:00:00.000001001", "holds microseconds"),
    (CLOCK, raw(pa.time64("us"), -5), "-5", "times go from"),
    (SPAN, pa.array([timedelta(milliseconds=5)]), "0:00:00.005000", "2 digits"),
    (INTS, pa.array([[1, None], None, [2, 70000]]), "70000", "smallint[] holds"),
    (SHORTS, pa.array([["a"], ["long", "b"]]), "'long'", "holds 3 characters"),
    (PRICES, pa.array([[Decimal("0.001")]]), "0.001", "holds 5"),
]


@pytest.mark.parametrize(("target", "values", "shown", "why"), CASES)
def test_a_value_that_does_not_fit_is_named(target: Column, values: pa.Array, shown: str, why: str) -> None:
    around = pa.concat_arrays([values[:1], values, values[:1]]).slice(1, len(values))
    for given in (values, around):
        with pytest.raises(Fatal) as refused:
            encode(target, given)
        assert refused.value.what.startswith(f"table sales.orders, column price: {shown}")
        assert refused.value.what.endswith(f"{shown} does not go in")
        assert why in refused.value.why
        assert refused.value.next == "cast or filter such values before this sink"


def test_only_the_rows_of_a_slice_are_looked_at() -> None:
    """What doesn't fit, but isn't among the rows, or is NULL, hurts nobody."""
    for target, bad, good in (
        (INT2, 70_000, 1),
        (TEXT, "a\0b", "fine"),
        (SHORT, "long", "abc"),
        (UUID, "no", U),
        (CENTS, Decimal("0.001"), Decimal("0.01")),
        (SECONDS, datetime(2026, 1, 1, 0, 0, 0, 1), datetime(2026, 1, 1)),
    ):
        values = pa.array([bad, good, bad])
        if isinstance(bad, Decimal):
            values = pa.array([bad, good, bad], pa.decimal128(9, 3))
        alone = pa.array([good], values.type)
        assert encode(target, values[1:2]) == encode(target, alone)
        hidden = pa.Array.from_buffers(values.type, 3, [pa.py_buffer(b"\2"), *values.buffers()[1:]])
        assert hidden.to_pylist()[::2] == [None, None]
        nothing: Any = [None, good, None]
        assert encode(target, hidden) == encode(target, pa.array(nothing, values.type))


def test_a_type_that_does_not_fit_and_a_name_that_is_not_there_are_refused_before_the_first_row() -> None:
    with pytest.raises(
        Fatal, match=r"table sales\.orders, column price: the rows' timestamp\[us\] does not go into"
    ) as refused:
        encode(ZONED, pa.array([datetime(2026, 1, 1)]))
    assert refused.value.next == "write CAST(`price` AS TIMESTAMP) in the frame"
    with pytest.raises(Fatal, match=r"table sales\.orders has no column for the rows' cost"):
        RowEncoder("sales.orders", pa.schema([("cost", pa.int64())]), [INT8])


def test_the_first_moments_of_python_are_taken() -> None:
    first = datetime(1, 1, 1, tzinfo=timezone.utc)
    assert encode(ZONED, pa.array([first], pa.timestamp("us", "UTC")))
    assert encode(DAY, pa.array([date.min, date.max]))
