"""Which value of a batch a database could not store as it is. Executors import this module."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import plain

__all__ = ["inexact", "unstorable"]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_FIRST, _END = -719_162 * _DAY, 2_932_897 * _DAY  # the years 1 to 9999: outside them ISO text loses its width


def unstorable(
    batch: pa.RecordBatch,
    product: str,
    column_type: Callable[[pa.DataType], str | None],
    refused: Callable[[pa.Array], str | None] = lambda column: None,
) -> str | None:
    """Return which value of a batch could not be stored as it is; None when all can.

    `column_type` is None for types that the product can't hold; `refused` says what else is wrong with a column.
    """
    try:
        batch.validate(full=True)  # broken UTF-8, which Spark lets through, or digits that the type doesn't have
    except pa.ArrowInvalid as error:
        return str(error)
    for name, column in zip(batch.schema.names, map(plain, batch.columns), strict=True):
        if column_type(column.type) is None:
            return f"column {name} is of type {column.type}, which {product} can't hold"
        if problem := refused(column):
            return f"column {name} has {problem}"
        if _outside_years(column):
            return f"column {name} has a value outside the years 1 to 9999"
    return None


def inexact(column: pa.Array) -> str | None:
    """Return what of a column most databases hold no value of: NaN, infinity, parts of a microsecond."""
    kind = column.type
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(column.cast(pa.float64()))).as_py() is False:
        return "NaN or infinity"
    if (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns":
        whole = column.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(whole, 1000), 1000), whole)).as_py():
            return "parts of a microsecond"
    return None


def _outside_years(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_date32(kind):
        first, end = _FIRST // _DAY, _END // _DAY
    elif pa.types.is_date64(kind) or pa.types.is_timestamp(kind):
        unit = _PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]
        first, end = _FIRST * unit, _END * unit
    else:
        return False
    extremes = pc.min_max(column)
    least, greatest = extremes["min"].value, extremes["max"].value
    return least is not None and not first <= least <= greatest < end
