"""Arrow values as SQLite stores them.

Text keeps order: timestamps and dates are ISO 8601 of a fixed width (UTC where the type has a zone), so that text
order is time order. Decimals are plain decimal text, of which no digit is lost. SQLite has no NaN: it becomes NULL.
Executors import this module.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import plain
from exactsink_idempotent_upsert import storable

__all__ = ["column_type", "sort_values", "stored_values", "unstorable"]

_STORED = {
    "BOOLEAN": ["boolean"],
    "BIGINT": ["integer"],
    "DOUBLE": ["floating"],
    "TEXT": ["string", "large_string", "string_view", "decimal", "timestamp", "date", "time"],
    "BLOB": ["binary", "large_binary", "binary_view", "fixed_size_binary"],
}


def column_type(type: pa.DataType) -> str | None:
    """Name the column type for values of an Arrow type; None when SQLite can't take them without loss."""
    if pa.types.is_dictionary(type):
        return column_type(type.value_type)
    if pa.types.is_uint64(type):
        return None
    fitting = (name for name, kinds in _STORED.items() if any(getattr(pa.types, f"is_{kind}")(type) for kind in kinds))
    return next(fitting, None)


def stored_values(column: pa.Array) -> list[Any]:
    """Return a column's values as Python values that sqlite3 binds."""
    column = plain(column)
    kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_timestamp(kind):
        column = _iso(column)
    elif pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind):
        return [format(Decimal(v), "f") if v and "E" in v else v for v in values]
    return values


def sort_values(column: pa.Array) -> list[Any]:
    """Return values which SQLite orders as the column's own are ordered, NULL (and NaN) lowest.

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
    """Return which value of a batch could not be stored as it is; None when all can."""
    return storable.unstorable(batch, "SQLite", column_type)


def _iso(column: pa.Array) -> pa.Array:
    """Write timestamps as `YYYY-MM-DDTHH:MM:SS.ffffff`, nine digits for nanoseconds, with Z where there is a zone."""
    unit = "ns" if column.type.unit == "ns" else "us"
    zone = "UTC" if column.type.tz else None
    text = column.cast(pa.timestamp(unit, tz=column.type.tz)).cast(pa.timestamp(unit, tz=zone)).cast(pa.string())
    return pc.replace_substring(text, " ", "T", max_replacements=1)
