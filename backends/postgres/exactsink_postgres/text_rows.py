"""Rows as COPY's text format, for tables with columns that only the server can read: inet, ranges, vector, ..."""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import element_of
from exactsink_postgres.type_mapping import Column

__all__ = ["TextRows"]

_is = pa.types
_TEXT = pa.large_string()
_IN_COPY = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_IN_ARRAY = {"\\": "\\\\", '"': '\\"'}
_JULIAN_1970 = 2_440_588  # J and a number is a date of any era, whatever DateStyle says
_MIDNIGHT_US = 86_400_000_000


class TextRows:
    """Write batches as lines, with the calls of pgpq's encoder. Columns are converted as for the binary format.

    Lists contain exactly their elements, without hidden values of NULL lists.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def write_header(self) -> bytes:
        return b""

    def write_batch(self, batch: pa.RecordBatch) -> bytes:
        parts: list[pa.Array | pa.Scalar] = []
        for column, values in zip(self._columns, batch.columns, strict=True):
            texts = _texts(values, column) if element_of(values.type) is None else _arrays(values, column)
            parts += [_escaped(texts, _IN_COPY), _text("\t")]
        lines = _joined(*parts[:-1], _text("\n"), null_handling="replace", null_replacement="\\N")
        return _data(lines)

    def finish(self) -> bytes:
        return b""


def _arrays(lists: pa.Array, column: Column) -> pa.Array:
    """Write lists as the server does, with quotes around each element that is not NULL."""
    elements = _escaped(_texts(lists.values, column), _IN_ARRAY)
    elements = _joined(_text('"'), elements, _text('"')).fill_null("NULL")
    mask = lists.is_null() if lists.null_count else None
    relisted = pa.ListArray.from_arrays(lists.offsets.cast(pa.int32()), elements, mask=mask)
    return _joined(_text("{"), pc.binary_join(relisted, _text(",")), _text("}"))


def _texts(values: pa.Array, column: Column) -> pa.Array:
    """Write values so that the server reads them back, whatever its session's settings."""
    kind = values.type
    if _is.is_timestamp(kind):
        moments = values.view(pa.int64()).view(pa.timestamp("us"))
        clock, zone = moments.cast(pa.time64("us")), "+00" if kind.tz else ""
        return _joined(_days(moments.cast(pa.date32(), safe=False)), _text(" "), clock.cast(_TEXT), _text(zone))
    if _is.is_date(kind):
        return _days(values)
    if _is.is_time(kind):
        last = pc.equal(values.view(pa.int64()), _MIDNIGHT_US)  # Arrow writes no 24:00
        return pc.if_else(last, _text("24:00"), values.cast(_TEXT))
    if _is.is_duration(kind):
        return _joined(values.view(pa.int64()).cast(_TEXT), _text(" microseconds"))
    if _is.is_fixed_size_binary(kind) or _is.is_binary(kind) or _is.is_large_binary(kind):
        return _joined(_text("" if column.base == "uuid" else "\\x"), _hexadecimal(values.cast(pa.large_binary())))
    return values.cast(_TEXT)


def _days(dates: pa.Array) -> pa.Array:
    return _joined(_text("J"), pc.add(dates.view(pa.int32()).cast(pa.int64()), _JULIAN_1970).cast(_TEXT))


def _hexadecimal(values: pa.Array) -> pa.Array:
    digits = pa.py_buffer(binascii.hexlify(_data(values)))
    places = pa.Array.from_buffers(pa.int64(), len(values) + 1, [None, values.buffers()[1]], offset=values.offset)
    ends = pc.multiply(pc.subtract(places, places[0]), 2)
    texts = pa.Array.from_buffers(_TEXT, len(values), [None, ends.buffers()[1], digits])
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, _TEXT)) if values.null_count else texts


def _escaped(texts: pa.Array, signs: Mapping[str, str]) -> pa.Array:
    """Replace signs. Usually texts have none of them, which one check of all their bytes shows."""
    data = _data(texts)
    for sign, escaped in signs.items():
        if sign.encode() in data:
            texts = pc.replace_substring(texts, sign, escaped)
    return texts


def _data(values: pa.Array) -> bytes:
    """Return the bytes of all values, one after the other, including bytes hidden behind NULLs."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return b""
    places = memoryview(offsets).cast("q")
    return bytes(memoryview(data)[places[values.offset] : places[values.offset + len(values)]])


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _joined(*parts: pa.Array | pa.Scalar, **options: str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _text(""), **options)
