"""Arrow values as the types that pgpq writes: nothing is rounded, cut or wrapped; what doesn't fit raises ValueError.

A message says what the column keeps. Whose value it was is found by the caller.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from exactsink_postgres.rows.fits import TEXTS, Column, json_text

__all__ = ["Conversion", "conversion", "decoded"]

Conversion = Callable[[pa.Array], pa.Array]

_is = pa.types
_PLAIN = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
}
_RANGE = {"int2": "-32768 to 32767", "int4": "-2147483648 to 2147483647", "int8": "64 bits with a sign"}
_UUID = r"^(?:(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}|\{(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\})$"
_FIRST_DAY, _END_DAY = -2_440_588, 2_145_042_541  # 4714-11-24 BC, and 5874898-01-01: the server's dates, from 1970
_FIRST_MOMENT = _FIRST_DAY * 86_400_000_000
_DAY_US = 86_400_000_000


def conversion(type: pa.DataType, column: Column) -> Conversion:
    """Return what turns values of a type into those that pgpq writes for a column, or for its elements.

    The type fits, by `misfit`. Always gives the same Arrow type, also for no rows.
    """
    base = column.base
    if _is.is_null(type):
        return lambda values: pa.nulls(len(values), pa.bool_())
    if json_text(type):
        return lambda values: _texts(values.flatten()[0], column)
    if base in TEXTS or column.kind == "e":
        return lambda values: _texts(values, column)
    if base == "numeric":
        return _numeric(type, column)
    if base in _PLAIN:
        return lambda values: _cast(values, _PLAIN[base], f"{column.type} holds {_RANGE.get(base, 'fewer digits')}")
    if base == "uuid":
        return _uuids
    if base == "bytea":
        return _bytes
    if base == "date":
        return _dates
    return {"time": _times, "interval": _spans}.get(base, _moments)(column)


def decoded(values: pa.Array) -> pa.Array:
    """Decode a dictionary-encoded array, in which NULLs may hide in the dictionary; others stay as they are."""
    return values.dictionary_decode() if _is.is_dictionary(values.type) else values


def _cast(values: pa.Array, type: pa.DataType, why: str) -> pa.Array:
    if values.type == type:
        return values
    try:
        return values.cast(type)
    except pa.ArrowInvalid:
        raise ValueError(why) from None


def _texts(values: pa.Array, column: Column) -> pa.Array:
    if _is.is_string_view(values.type):
        values = values.cast(pa.large_string())
    least, greatest = _extreme_bytes(values)
    if greatest > 127:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise ValueError("it is no UTF-8") from None
    # The byte may stand where a NULL is, and be nobody's.
    if least == 0 and pc.any(pc.match_substring(values, "\0")).as_py():
        raise ValueError("the server's texts hold no zero byte")
    most = column.length
    if most is not None and (pc.max(pc.utf8_length(values)).as_py() or 0) > most:
        raise ValueError(f"{column.type} holds {most} characters")
    return values


def _extreme_bytes(values: pa.Array) -> tuple[int, int]:
    """Return the least and the greatest byte of all texts: one quick look reports that nothing is wrong with them."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return 1, 1
    places = memoryview(offsets).cast("q" if _is.is_large_string(values.type) else "i")
    begin, end = places[values.offset], places[values.offset + len(values)]
    extremes = pc.min_max(pa.Array.from_buffers(pa.uint8(), end - begin, [None, data], offset=begin))
    return extremes["min"].as_py() or 0, extremes["max"].as_py() or 0


def _numeric(type: pa.DataType, column: Column) -> Conversion:
    """Leave digits as they are; check them where the column keeps fewer. The server would round without a word."""
    given = type if _is.is_decimal(type) else pa.decimal128(20, 0)
    scale, precision = given.scale, given.precision
    kept, exact = column.digits, pa.decimal128(min(precision, 38), scale)
    if kept is not None and (scale > kept[1] or precision - scale > kept[0] - kept[1]):
        scale = min(scale, kept[1])
        exact = pa.decimal128(max(1, min(38, kept[0] - kept[1] + scale)), scale)
    why = (
        f"{column.type} holds {kept[0]} digits, {kept[1]} of them after the point" if kept else "it has over 38 digits"
    )

    def convert(values: pa.Array) -> pa.Array:
        return _cast(_cast(values, given, why), exact, why)

    return convert


def _uuids(values: pa.Array) -> pa.Array:
    why = "it is no UUID"
    if not (_is.is_string(values.type) or _is.is_large_string(values.type) or _is.is_string_view(values.type)):
        try:
            return values.cast(pa.large_binary()).cast(pa.binary(16))
        except pa.ArrowInvalid:
            raise ValueError("a UUID has 16 bytes") from None
    if not len(values):
        return pa.array([], pa.binary(16))
    filled = values.cast(pa.large_string()).fill_null("0" * 32)
    if not pc.all(pc.match_substring_regex(filled, _UUID)).as_py():
        raise ValueError(why)
    digits = pc.replace_substring_regex(filled, "[-{}]", "")
    _, _, data = pa.concat_arrays([digits]).buffers()
    raw = pa.py_buffer(binascii.unhexlify(memoryview(data)[: 32 * len(values)]))
    uuids = pa.Array.from_buffers(pa.binary(16), len(values), [None, raw])
    return uuids if not values.null_count else pc.if_else(values.is_valid(), uuids, pa.scalar(None, pa.binary(16)))


def _bytes(values: pa.Array) -> pa.Array:
    return values.cast(pa.large_binary()) if _is.is_binary_view(values.type) else values


def _dates(values: pa.Array) -> pa.Array:
    values.validate(full=True)  # a date64 that is no whole day
    days = values.cast(pa.date32())
    _within(days.view(pa.int32()), _FIRST_DAY, _END_DAY, "dates go from 4714 BC to 5874897")
    return days


def _moments(column: Column) -> Conversion:
    def convert(values: pa.Array) -> pa.Array:
        moments = _cast(values, pa.timestamp("us", values.type.tz), f"{column.type} holds microseconds")
        _within(moments.view(pa.int64()), _FIRST_MOMENT, None, "timestamps go from 4714 BC to 294276")
        _whole_digits(moments.view(pa.int64()), column)
        return moments

    return convert


def _times(column: Column) -> Conversion:
    def convert(values: pa.Array) -> pa.Array:
        times = _cast(values, pa.time64("us"), f"{column.type} holds microseconds")
        _within(times.view(pa.int64()), 0, _DAY_US + 1, "times go from 00:00 to 24:00")
        _whole_digits(times.view(pa.int64()), column)
        return times

    return convert


def _spans(column: Column) -> Conversion:
    def convert(values: pa.Array) -> pa.Array:
        spans = _cast(values, pa.duration("us"), f"{column.type} holds microseconds")
        _whole_digits(spans.view(pa.int64()), column)
        return spans

    return convert


def _within(values: pa.Array, first: int, end: int | None, why: str) -> None:
    extremes = pc.min_max(values)
    least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
    if least is not None and (least < first or (end is not None and greatest >= end)):
        raise ValueError(why)


def _whole_digits(values: pa.Array, column: Column) -> None:
    """Refuse digits of a second that the column would round away."""
    step = 10 ** (6 - column.second_digits)
    if step > 1 and not pc.all(pc.equal(pc.multiply(pc.divide(values, step), step), values), min_count=0).as_py():
        raise ValueError(f"{column.type} holds {column.second_digits} digits of a second's fraction")
