"""A table's partitions: compute rows' partition values by Iceberg's transforms, and divide rows by them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import BooleanType, DateType, IntegerType, LongType, StringType

__all__ = ["divided", "partition_of", "partition_types_fit"]

_DAYS_OR_MICROS = {pa.types.is_date32: "int32", pa.types.is_timestamp: "int64"}
_PLAIN = (BooleanType, DateType, IntegerType, LongType, StringType)
_CALL = re.compile(r"(?:(\w+)\((?:(\d+)\s*,\s*)?)?([^()]+?)\)?")


def partition_of(text: str) -> tuple[str, Transform[Any, Any]]:
    """Read an option's partition, for example `bucket(16, id)`, as column and transform. Raises ValueError."""
    found = _CALL.fullmatch(text.strip())
    if found is None or (found[1] is None) != (not text.strip().endswith(")")):
        raise ValueError(f"{text} is not a partition; write a column, or day(ts), bucket(16, id), truncate(4, name)")
    name, width, column = found.groups()
    transform: Transform[Any, Any] = parse_transform(f"{name}[{width}]" if width else name or "identity")
    return column, transform


def partition_types_fit(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the partitions that this backend does not support, because of their transform or their type."""
    wrong = []
    for field in spec.fields:
        source = schema.find_field(field.source_id)
        known = str(field.transform).partition("[")[0] in _TRANSFORMS
        top = source in schema.fields
        if not known or not top or not isinstance(field.transform.result_type(source.field_type), _PLAIN):
            wrong.append(f"{field.name}: {field.transform} of {source.name} {source.field_type}")
    return wrong


_TRANSFORMS = {"identity", "bucket", "truncate", "year", "month", "day", "hour", "void"}


def divided(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Divide rows by their partition, in their order."""
    if not spec.fields:
        yield (), rows
        return
    values = [_values(rows.column(schema.find_column_name(field.source_id)), field, schema) for field in spec.fields]
    names = [str(place) for place in range(len(values))]
    codes = pa.table([code for code, _ in values], names=names).append_column("", pa.array(range(rows.num_rows)))
    for group in codes.group_by(names, use_threads=False).aggregate([("", "list")]).to_pylist():
        key = tuple(made[group[name]] for name, (_, made) in zip(names, values, strict=True))
        yield key, rows.take(pa.array(group["_list"]))


def _values(column: pa.ChunkedArray, field: PartitionField, schema: Schema) -> tuple[pa.Array, list[Any]]:
    """Return each row's partition value as a number, and the values by their numbers."""
    kind = schema.find_type(field.source_id)
    for is_one, integer in _DAYS_OR_MICROS.items():
        if is_one(column.type):
            column = column.cast(integer)  # transforms need days and microseconds
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    transform = field.transform.transform(kind)
    made = [None if value is None else transform(value) for value in encoded.dictionary.to_pylist()]
    kept = list(dict.fromkeys(made))
    numbers = {value: number for number, value in enumerate(kept)}
    return pa.array([numbers[value] for value in made]).take(encoded.indices), kept
