"""Read a job's columns from `[source] schema` into Arrow types, without Spark, if its file names all of them."""

from __future__ import annotations

import os
import re

import pyarrow as pa

from exactsink.job.config import JobConfig
from exactsink.protocol.sinks import Sink
from exactsink.toolkit.spark_sql import quoted_name

__all__ = ["columns_of", "source_columns"]

_FILES = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
_COLUMN = re.compile(
    r"""\s*(?P<name>\w+|`(?:[^`]|``)+`)\s*[\s:]\s*(?P<kind>\w+)\s*(?:\((?P<of>[\d\s,]+)\))?\s*"""
    r"""(?P<never>NOT\s+NULL)?\s*(?:COMMENT\s+(?:'[^']*'|"[^"]*"))?\s*(?:,|$)""",
    re.IGNORECASE,
)
_KINDS = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
}
_DECIMALS = ("decimal", "dec", "numeric")
_MOMENTS = ("timestamp", "timestamp_ltz")


def source_columns(config: JobConfig) -> pa.Schema | None:
    """Return the columns of the sinks' frame, None if only Spark knows them.

    Only Spark knows them if a transform or a route makes them, the source has its own, a type is nested, or the folders
    of a file source may add columns (`day=1`).
    """
    source, job = config.source, config.job
    if source is None or source.schema_ is None or job.transform or job.route or config.transform is not None:
        return None
    if source.format.lower() not in _FILES or _may_bring_columns(source.path):
        return None
    if "spark.sql.timestampType" in config.spark.conf:  # it changes the meaning of TIMESTAMP
        return None
    zone = str(config.spark.conf.get("spark.sql.session.timeZone", "UTC"))
    fields, at = [], 0
    while at < len(source.schema_):
        found = _COLUMN.match(source.schema_, at)
        kind = None if found is None else _kind(found["kind"].lower(), found["of"], zone)
        if found is None or kind is None:
            return None
        name = found["name"]
        fields.append(pa.field(name[1:-1].replace("``", "`") if name.startswith("`") else name, kind))
        at = found.end()
    return pa.schema(fields)


def columns_of(sink: Sink, source: pa.Schema | None) -> pa.Schema | None:
    """Return the columns of a sink's shaped rows from such a frame, None if only Spark knows them.

    Raises ConfigError for columns that its backend refuses.
    """
    if source is None or sink.columns:
        return None
    schema = source if sink.epoch_column is None else source.append(pa.field(sink.epoch_column, pa.int64()))
    shaped = sink.backend.shape(schema)
    if shaped is None:
        return schema
    known = {quoted_name(field.name): field for field in schema}
    return pa.schema([known[name] for name in shaped]) if all(name in known for name in shaped) else None


def _kind(name: str, of: str | None, zone: str) -> pa.DataType | None:
    if name in _MOMENTS:
        return pa.timestamp("us", tz=zone)
    if name in _DECIMALS:
        digits = [int(part) for part in (of or "10").split(",")]
        return pa.decimal128(*digits) if len(digits) < 3 and 0 < digits[0] <= 38 else None
    return _KINDS.get(name) if of is None else None


def _may_bring_columns(path: str | None) -> bool:
    """Return whether Spark may find columns in the names of folders, or this process can't see the folders."""
    if path is None or not os.path.isdir(path):
        return True
    with os.scandir(path) as entries:
        return any("=" in entry.name for entry in entries if entry.is_dir())
