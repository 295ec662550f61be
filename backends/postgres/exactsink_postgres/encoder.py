"""Rows as Postgres' binary COPY: pgpq writes it, from batches that are converted to the types of the table's columns.

If only the server can read a column's type, rows are written as text. No value is rounded, cut or wrapped: a value that
doesn't fit is refused by name. Lists become arrays of one dimension, by pgpq, or as bytes if pgpq does not know the
element's type.
"""

from __future__ import annotations

import array
import binascii
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder
from pgpq.encoders import LargeStringEncoderBuilder, StringEncoderBuilder
from pgpq.schema import Jsonb

from exactsink.contract import Fatal
from exactsink.toolkit.json_columns import element_of, plain
from exactsink_postgres.errors import FIX_VALUES
from exactsink_postgres.text_rows import TextRows
from exactsink_postgres.type_mapping import (
    ELEMENTS,
    TEXTS,
    Column,
    cast_for,
    family,
    is_read_by_server,
    matches,
    misfit,
)

__all__ = ["RowEncoder"]

_is = pa.types
_RANGES = {
    "bool": (pa.bool_(), ""),
    "int2": (pa.int16(), "-32768 to 32767"),
    "int4": (pa.int32(), "-2147483648 to 2147483647"),
    "int8": (pa.int64(), "64 bits with a sign"),
    "float4": (pa.float32(), "fewer digits"),
    "float8": (pa.float64(), "fewer digits"),
}
_UUID = r"^(?:(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}|\{(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\})$"
_DAY_US = 86_400_000_000
_FIRST_DAY, _END_DAY = -2_440_588, 2_145_042_541  # 4714-11-24 BC, and 5874898-01-01: the server's dates, from 1970
_FROM_1970_TO_2000 = 946_684_800_000_000  # microseconds: where the server counts from
_JSONB: dict[pa.DataType, Any] = {pa.string(): StringEncoderBuilder, pa.large_string(): LargeStringEncoderBuilder}
_MOST_SHOWN = 100


class RowEncoder:
    """Encode batches of one schema for a table's columns, matched by name. Some bytes wait until `finish`.

    Raises Fatal, with table, column and the first bad value, for a value that the server would cut, round or wrap. The
    server itself checks NOT NULL, and whether JSON is valid.
    """

    def __init__(self, table: str, schema: pa.Schema, columns: Sequence[Column]) -> None:
        chosen = []
        for field, found in zip(schema, matches(schema.names, columns), strict=True):
            if len(found) != 1:
                raise Fatal(
                    f"table {table} has no column for the rows' {field.name}",
                    why=f"its columns are {', '.join(column.name for column in columns)}",
                    next="check that two schemas do not feed the job, then start it again",
                )
            chosen.append(found[0])
        self.names = [column.name for column in chosen]
        self.format = "text" if any(map(is_read_by_server, chosen)) else "binary"
        as_bytes = self.format == "binary"
        self._columns = [_ColumnEncoder(table, *pair, as_bytes) for pair in zip(schema, chosen, strict=True)]
        self._schema = pa.schema([(str(place), column.type) for place, column in enumerate(self._columns)])
        self._encoder = TextRows(chosen) if self.format == "text" else self._binary()

    def _binary(self) -> ArrowToPostgresBinaryEncoder:
        builders = {
            field.name: _JSONB[field.type].new_with_output(field, Jsonb())
            if column.is_jsonb
            else ArrowToPostgresBinaryEncoder.infer_encoder(field)
            for field, column in zip(self._schema, self._columns, strict=True)
        }
        return ArrowToPostgresBinaryEncoder.new_with_encoders(self._schema, builders)

    def header(self) -> bytes:
        """Return the header of the COPY."""
        return self._encoder.write_header()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Take a batch's rows; return the bytes that are ready, of these rows and earlier ones, perhaps none."""
        columns = self._encoded(batch)
        return self._encoder.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def finish(self) -> bytes:
        """Return the remaining bytes, with the end of the COPY."""
        return self._encoder.finish()

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise Fatal if `encode` would, and keep nothing."""
        self._encoded(batch)

    def _encoded(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [column.encode(values) for column, values in zip(self._columns, batch.columns, strict=True)]


class _ColumnEncoder:
    """Convert one column's values for pgpq or, with lists as lists, for `TextRows`."""

    def __init__(self, table: str, field: pa.Field, column: Column, as_bytes: bool) -> None:
        self.name = column.name
        self._column = column
        self._named = f"table {table}, column {column.name}"
        why = misfit(field, column)
        if why is not None:
            cast = cast_for(field, column)
            fix = f"write {cast} in the frame" if cast else "make it fit in the frame, or leave it out of columns"
            raise Fatal(f"{self._named}: {why}", next=fix)
        empty = plain(pa.array([], field.type))
        self._is_list = element_of(empty.type) is not None
        inner = plain(empty.flatten()).type if self._is_list else empty.type
        is_text = column.base in TEXTS or column.kind == "e" or is_read_by_server(column)
        self._convert = _nothing if _is.is_null(inner) else _texts if is_text else _CONVERSIONS[column.base]
        self._as_bytes = as_bytes and self._is_list and (column.base not in ELEMENTS or _is.is_null(inner))
        self.type = self.encode(pa.array([], field.type)).type
        self.is_jsonb = column.base == "jsonb" and self.type in _JSONB

    def encode(self, values: pa.Array) -> pa.Array:
        values = plain(values)
        if not self._is_list:
            return self._checked(values)
        elements = self._checked(plain(values.flatten()))
        if not self._as_bytes:
            return _relisted(values, elements)
        return _array_bytes(values, elements, self._column.element, b"\1" if self._column.base == "jsonb" else b"")

    def _checked(self, values: pa.Array) -> pa.Array:
        try:
            return self._convert(values, self._column)
        except ValueError as error:
            what = f"{self._named}: {_shown(self._first(values))} does not go in"
            raise Fatal(what, why=str(error), next=FIX_VALUES) from None

    def _first(self, values: pa.Array) -> pa.Scalar:
        """Find the first value that doesn't convert, by halving."""
        while len(values) > 1:
            half = values.slice(0, len(values) // 2)
            try:
                self._convert(half, self._column)
            except ValueError:
                values = half
            else:
                values = values.slice(len(values) // 2)
        return values[0]


def _shown(value: pa.Scalar) -> str:
    """Show a value exactly, even one that Python lacks: broken UTF-8, the year 300000, a nanosecond."""
    kind = value.type
    try:
        text = repr(value.as_py()) if isinstance(value.as_py(), (str, bytes)) else str(value.as_py())
        if _is.is_timestamp(kind) or _is.is_time(kind):  # with all its digits
            text = str(value.cast(pa.string()).as_py())
            text = str(value.value) if text.startswith("<") else text
    except (ValueError, OverflowError):
        text = repr(bytes(value.as_buffer())) if family(kind) == "text" else str(value.value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"


def _relisted(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Put converted elements in the place of a list array's own; a NULL list stays NULL."""
    lengths = pc.list_value_length(lists).cast(pa.int64()).fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, elements, mask=lists.is_null() if lists.null_count else None)


def _array_bytes(lists: pa.Array, elements: pa.Array, oid: int, prefix: bytes = b"") -> pa.Array:
    """Write a list array as the server's binary arrays, with elements of type `oid`.

    `elements` are the lists' own, flattened: texts, bytes, or timestamps. `prefix` is written before each.
    """
    values, empty = _raw(elements), pa.scalar(b"", pa.large_binary())
    if prefix:
        values = pc.binary_join_element_wise(pa.scalar(prefix, pa.large_binary()), values, empty)
    lengths = pc.binary_length(values).cast(pa.int32()).fill_null(-1)
    parts = pc.binary_join_element_wise(_big_endian(lengths), values.fill_null(b""), empty)
    bodies = pc.binary_join(_relisted(lists, parts).cast(pa.list_(pa.large_binary())), empty)
    counts = _big_endian(pc.list_value_length(lists).cast(pa.int32()).fill_null(0))
    head, lower = (pa.scalar(struct.pack(f"!{len(n)}i", *n), pa.large_binary()) for n in ((1, 1, oid), (1,)))
    return pc.binary_join_element_wise(head, counts, lower, bodies, empty)


def _raw(elements: pa.Array) -> pa.Array:
    if _is.is_timestamp(elements.type):
        micros = pc.subtract(elements.view(pa.int64()), _FROM_1970_TO_2000)
        return pc.if_else(micros.is_valid(), _big_endian(micros.fill_null(0)), pa.scalar(None, pa.large_binary()))
    if _is.is_boolean(elements.type):  # it has only NULLs
        return pa.nulls(len(elements), pa.large_binary())
    return elements.cast(pa.large_binary())


def _big_endian(numbers: pa.Array) -> pa.Array:
    """Return numbers, none of them NULL, as bytes in the network's order."""
    width = numbers.type.bit_width // 8
    swapped = array.array("q" if width == 8 else "i")
    data = numbers.buffers()[1]
    swapped.frombytes(memoryview(data)[numbers.offset * width : (numbers.offset + len(numbers)) * width])
    if sys.byteorder == "little":
        swapped.byteswap()
    return pa.Array.from_buffers(pa.binary(width), len(numbers), [None, pa.py_buffer(swapped)]).cast(pa.large_binary())


def _cast(values: pa.Array, type: pa.DataType, why: str) -> pa.Array:
    if values.type == type:
        return values
    try:
        return values.cast(type)
    except pa.ArrowInvalid:
        raise ValueError(why) from None


# Conversions: values of a type that fits, by `misfit`, become those that pgpq writes for a column, or for its elements.
# The Arrow type is always the same, also for no rows. They raise ValueError with what the column keeps; whose value it
# was is found by the caller.


def _nothing(values: pa.Array, column: Column) -> pa.Array:
    return pa.nulls(len(values), pa.bool_())


def _in_range(values: pa.Array, column: Column) -> pa.Array:
    kept, holds = _RANGES[column.base]
    return _cast(values, kept, f"{column.type} holds {holds}")


def _texts(values: pa.Array, column: Column) -> pa.Array:
    if _is.is_string_view(values.type):
        values = values.cast(pa.large_string())
    least, greatest = _extreme_bytes(values)
    if greatest > 127:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise ValueError("it is not UTF-8") from None
    # The byte may be behind a NULL, and belong to no value.
    if least == 0 and pc.any(pc.match_substring(values, "\0")).as_py():
        raise ValueError("the server's texts can't hold a zero byte")
    most = column.length
    if most is not None and (pc.max(pc.utf8_length(values)).as_py() or 0) > most:
        raise ValueError(f"{column.type} holds {most} characters")
    return values


def _extreme_bytes(values: pa.Array) -> tuple[int, int]:
    """Return the least and the greatest byte of all texts: one quick check shows that all of them are valid."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return 1, 1
    places = memoryview(offsets).cast("q" if _is.is_large_string(values.type) else "i")
    begin, end = places[values.offset], places[values.offset + len(values)]
    extremes = pc.min_max(pa.Array.from_buffers(pa.uint8(), end - begin, [None, data], offset=begin))
    return extremes["min"].as_py() or 0, extremes["max"].as_py() or 0


def _numeric(values: pa.Array, column: Column) -> pa.Array:
    """Leave digits unchanged. Check them if the column keeps fewer, because the server would round silently."""
    given = values.type if _is.is_decimal(values.type) else pa.decimal128(20, 0)
    scale, precision = given.scale, given.precision
    kept, exact, why = column.digits, pa.decimal128(min(precision, 38), scale), "it has over 38 digits"
    if kept is not None:
        why = f"{column.type} holds {kept[0]} digits, {kept[1]} of them after the point"
        if scale > kept[1] or precision - scale > kept[0] - kept[1]:
            scale = min(scale, kept[1])
            exact = pa.decimal128(max(1, min(38, kept[0] - kept[1] + scale)), scale)
    return _cast(_cast(values, given, why), exact, why)


def _uuids(values: pa.Array, column: Column) -> pa.Array:
    if family(values.type) == "bytes":
        return _cast(values.cast(pa.large_binary()), pa.binary(16), "a UUID has 16 bytes")
    if not len(values):
        return pa.array([], pa.binary(16))
    digits = values.cast(pa.large_string()).fill_null("0" * 32)
    if not pc.all(pc.match_substring_regex(digits, _UUID)).as_py():
        raise ValueError("it is not a UUID")
    for mark in "-{}":
        digits = pc.replace_substring(digits, mark, "")
    _, _, data = digits.buffers()
    raw = pa.py_buffer(binascii.unhexlify(memoryview(data)[: 32 * len(values)]))
    uuids = pa.Array.from_buffers(pa.binary(16), len(values), [None, raw])
    return uuids if not values.null_count else pc.if_else(values.is_valid(), uuids, pa.scalar(None, pa.binary(16)))


def _bytes(values: pa.Array, column: Column) -> pa.Array:
    return values.cast(pa.large_binary()) if _is.is_binary_view(values.type) else values


def _dates(values: pa.Array, column: Column) -> pa.Array:
    values.validate(full=True)  # a date64 that is not a whole day
    days = values.cast(pa.date32())
    _check_within(days.view(pa.int32()), _FIRST_DAY, _END_DAY, "dates go from 4714 BC to 5874897")
    return days


def _clock(values: pa.Array, column: Column) -> pa.Array:
    """Convert timestamps, times and intervals to microseconds; no digit of a second that the column keeps is lost."""
    kept: pa.DataType | None = {"time": pa.time64("us"), "interval": pa.duration("us")}.get(column.base)
    moments = _cast(values, kept or pa.timestamp("us", values.type.tz), f"{column.type} holds microseconds")
    ticks, step = moments.view(pa.int64()), 10 ** (6 - column.second_digits)
    if column.base == "time":
        _check_within(ticks, 0, _DAY_US + 1, "times go from 00:00 to 24:00")
    elif column.base != "interval":
        _check_within(ticks, _FIRST_DAY * _DAY_US, None, "timestamps go from 4714 BC to 294276")
    if step > 1 and not pc.all(pc.equal(pc.multiply(pc.divide(ticks, step), step), ticks), min_count=0).as_py():
        raise ValueError(f"{column.type} holds {column.second_digits} digits of a second's fraction")
    return moments


def _check_within(values: pa.Array, first: int, end: int | None, why: str) -> None:
    extremes = pc.min_max(values)
    least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
    if least is not None and (least < first or (end is not None and greatest >= end)):
        raise ValueError(why)


_CONVERSIONS: Mapping[str, Callable[[pa.Array, Column], pa.Array]] = {
    **dict.fromkeys(_RANGES, _in_range),
    **dict.fromkeys(("timestamp", "timestamptz", "time", "interval"), _clock),
    "numeric": _numeric,
    "uuid": _uuids,
    "bytea": _bytes,
    "date": _dates,
}
