"""What differs between the versions of Spark that are supported: asked of pyspark itself, not of its number."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["arrow_schema", "arrow_table"]


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the schema in which a frame's rows come to a Python task. Runs nothing.

    Moments have the session's time zone; before 4.3 pyspark's own function leaves them in UTC.
    """
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    made: Any = to_arrow_schema  # its parameters differ by version
    if "timezone" in inspect.signature(made).parameters:
        return made(frame.schema, timezone=zone)
    schema: pa.Schema = made(frame.schema)
    return pa.schema([field.with_type(_in_zone(field.type, zone)) for field in schema])


def arrow_table(frame: DataFrame) -> pa.Table:
    """Collect a small frame."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    collected: Any = frame  # 3.5 has it under a private name only
    return pa.Table.from_batches(collected._collect_as_arrow(), schema=arrow_schema(frame))


def _in_zone(kind: pa.DataType, zone: str | None) -> pa.DataType:
    """Return a type with its moments in this zone, however deep they stand."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_zone(field.type, zone)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_in_zone(kind.key_type, zone), _in_zone(kind.item_type, zone))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    return kind
