"""Arrow values as SQLite stores them: which types it takes, as what, and which values it could not hold.

Text keeps order: timestamps and dates are ISO 8601 of a fixed width (UTC where the type has a zone), so that text
order is time order. Decimals are plain decimal text, of which no digit is lost. SQLite has no NaN: it becomes NULL.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Storage", "plain", "sort_values", "storage", "stored_values", "unstorable"]

Storage = Literal["INTEGER", "REAL", "TEXT", "BLOB"]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31: outside them ISO text loses its width


def storage(type: pa.DataType) -> Storage | None:
    """Say as what SQLite stores values of an Arrow type; None when it can't take them without loss."""
    if pa.types.is_dictionary(type):
        return storage(type.value_type)
    if pa.types.is_boolean(type) or (pa.types.is_integer(type) and not pa.types.is_uint64(type)):
        return "INTEGER"
    if pa.types.is_floating(type):
        return "REAL"
    if _is_text(type) or pa.types.is_decimal(type) or _is_date_or_time(type) or pa.types.is_timestamp(type):
        return "TEXT"
    return "BLOB" if _is_binary(type) else None


def plain(column: pa.Array) -> pa.Array:
    """Decode a dictionary-encoded column, in which NULLs may hide in the dictionary; others stay as they are."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def stored_values(column: pa.Array) -> list[Any]:
    """Give a column's values as Python values that sqlite3 binds."""
    column = plain(column)
    kind = column.type
    if pa.types.is_boolean(kind):
        return _list(column.cast(pa.int8()))
    if pa.types.is_floating(kind):
        return _list(column.cast(pa.float64()))
    if pa.types.is_timestamp(kind):
        return _iso(column)
    if _is_date_or_time(kind):
        return _list(column.cast(pa.string()))
    if pa.types.is_decimal(kind):
        return [format(Decimal(v), "f") if v and "E" in v else v for v in _list(column.cast(pa.string()))]
    return _list(column)


def sort_values(column: pa.Array) -> list[Any]:
    """Give values which SQLite orders as the column's own are ordered, NULL (and NaN) lowest.

    Only decimals differ from what is stored: their text is no order, so they become zero-padded numerals, moved so
    far up that none is negative.
    """
    values = stored_values(column)
    kind = plain(column).type
    if not pa.types.is_decimal(kind):
        return values
    digits = kind.precision + max(0, -kind.scale)
    return [None if v is None else f"{int(v.replace('.', '')) + 10**digits:0{digits + 1}d}" for v in values]


def unstorable(batch: pa.RecordBatch) -> str | None:
    """Say which value of a batch could not be stored as it is; None when all can."""
    try:
        batch.validate(full=True)  # broken UTF-8, which Spark lets through, or digits that the type doesn't have
    except pa.ArrowInvalid as error:
        return str(error)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if storage(column.type) is None:
            return f"column {name} is of type {column.type}, which SQLite can't hold"
        bounds = _bounds(plain(column).type)
        if bounds is None or column.null_count == len(column):
            continue
        extremes = pc.min_max(plain(column))
        for end in ("min", "max"):
            value = extremes[end].value
            if value is not None and not bounds[0] <= value <= bounds[1]:
                return f"column {name} has a value outside the years 1 to 9999 (or the hours of a day)"
    return None


def _bounds(type: pa.DataType) -> tuple[int, int] | None:
    """Give the least and greatest value that fixed-width ISO text can show, in the type's own unit."""
    if pa.types.is_date32(type):
        return _FIRST_DAY, _LAST_DAY
    if pa.types.is_date64(type):
        return _FIRST_DAY * _DAY * 1000, (_LAST_DAY + 1) * _DAY * 1000 - 1
    if pa.types.is_timestamp(type):
        unit = _PER_SECOND[type.unit]
        return _FIRST_DAY * _DAY * unit, (_LAST_DAY + 1) * _DAY * unit - 1
    if pa.types.is_time(type):
        return 0, _DAY * _PER_SECOND[type.unit] - 1
    return None


def _iso(column: pa.Array) -> list[Any]:
    """Write timestamps as `YYYY-MM-DDTHH:MM:SS.ffffff`, nine digits for nanoseconds, with Z where there is a zone."""
    unit = "ns" if column.type.unit == "ns" else "us"
    zone = "UTC" if column.type.tz else None
    text = column.cast(pa.timestamp(unit, tz=column.type.tz)).cast(pa.timestamp(unit, tz=zone)).cast(pa.string())
    return _list(pc.replace_substring(text, " ", "T", max_replacements=1))


def _list(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_binary(type: pa.DataType) -> bool:
    names = ("is_binary", "is_large_binary", "is_binary_view", "is_fixed_size_binary")
    return any(getattr(pa.types, name)(type) for name in names)


def _is_date_or_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_date(type) or pa.types.is_time(type))
