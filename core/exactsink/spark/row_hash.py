"""A row's 64-bit hash, computed on the JVM. It covers every difference between two rows that a sink could store.

Spark's own xxhash64 skips NULL at any place, takes -0.0 for 0.0, and refuses maps and variants. Lost rows are written
again only if the replay's rows have the same hashes, so a difference that the hash does not cover would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

__all__ = ["row_hash"]

_BITS = 62
"""How many columns' NULLs fit into one number, without its sign."""


def row_hash(kinds: Sequence[DataType], values: Sequence[Column]) -> Column:
    """Return a hash of these values in their order; never NULL. NaN equals NaN, as Spark compares it."""
    missing = [_missing(values[first : first + _BITS]) for first in range(0, len(values), _BITS)]
    seen = [part for kind, value in zip(kinds, values, strict=True) for part in _parts(kind, value)]
    return F.xxhash64(*missing, *seen)


def _missing(values: Sequence[Column]) -> Column:
    """Return a bit for each value: whether it is NULL."""
    bits = [F.when(value.isNull(), F.lit(1 << place)).otherwise(F.lit(0)) for place, value in enumerate(values)]
    return reduce(Column.bitwiseOR, [bit.cast("bigint") for bit in bits])


def _parts(kind: DataType, value: Column) -> list[Column]:
    """Return the arguments of xxhash64 for a value, which may be NULL."""
    if isinstance(kind, StructType):
        names = [field.name for field in kind.fields]
        if len({name.lower() for name in names}) < len(names) or not names:
            return [value]  # two fields have one name, or there is no field: hash it as Spark does
        return [row_hash([field.dataType for field in kind.fields], [value.getField(name) for name in names])]
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return [F.size(value), F.transform(value, lambda item: row_hash([element], [item]))]
    if isinstance(kind, MapType):
        pair = [kind.keyType, kind.valueType]
        hashes = F.transform(F.map_entries(value), lambda entry: row_hash(pair, [entry["key"], entry["value"]]))
        return [F.size(value), F.array_sort(hashes)]  # a map has no order
    if isinstance(kind, FloatType | DoubleType):
        return [value, F.when(value == 0, value.cast("string") == "-0.0")]
    return [F.to_json(value) if kind.typeName() == "variant" else value]
