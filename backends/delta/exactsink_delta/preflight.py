"""Preflight: compare a table's columns with the rows', and check the table's requirements for writers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from exactsink.contract import Finding
from exactsink.toolkit.spark_sql import quoted_name
from exactsink.toolkit.tabular.tables import lacking

__all__ = ["added", "arrow_schema", "delta_columns", "misfits", "new_table_problems", "table_problems"]

_FEATURES = {"appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants", "timestampNtz"}
"""Features that a table may require of its writers. Rules that some of them allow are checked one by one."""

_RULES = re.compile(r"delta\.(constraints\.|columnMapping\.mode|generationExpression|invariants|identity\.)")
_PARTITION_TYPES = (pa.types.is_string, pa.types.is_integer, pa.types.is_date, pa.types.is_boolean)
_NO_NAME = re.compile(r"[ ,;{}()\n\t=]")
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_KEPT: Mapping[str, tuple[Literal["error", "warning"], str, str]] = {
    "delta.setTransactionRetentionDuration": ("error", "", "the table may forget which epoch it holds"),
    "delta.logRetentionDuration": ("warning", "30 days", "a RESTORE of the table may not be seen"),
    "delta.deletedFileRetentionDuration": ("warning", "7 days", "VACUUM may delete an epoch that is not committed yet"),
}
"""Durations in a table's settings. If the job may pause for longer: the severity, Delta's default, and the reason."""


def table_problems(table: DeltaTable, partition_by: Sequence[str], pause: float) -> Iterator[Finding]:
    """Find requirements of the table that this writer does not meet, and durations shorter than `pause` seconds."""
    settings = table.metadata().configuration
    rules = [key for key, value in settings.items() if _RULES.match(key) and value != "none"]
    rules += [f"{key} of column {f.name}" for f in table.schema().fields for key in f.metadata if _RULES.match(key)]
    rules += sorted({*(table.protocol().writer_features or ())} - _FEATURES)
    for rule in rules:
        yield Finding("error", f"the table requires this of its writers: {rule}", "write to a table without it")
    by = table.metadata().partition_columns
    if partition_by and list(partition_by) != by:
        yield Finding("error", f"the table is partitioned by {by}", "leave partition_by out")
    yield from _partition_problems(arrow_schema(table), by)
    for key, (severity, default, why) in _KEPT.items():
        kept = settings.get(key) or default
        if kept and _seconds(kept) < pause:
            needed = f"'{key}' = 'interval {-int(-pause // 86_400)} days'"
            message = f"{key} is {kept}, but the job may pause for {pause:.0f} s: {why}"
            yield Finding(severity, message, f"ALTER TABLE ... SET TBLPROPERTIES ({needed})")


def new_table_problems(schema: pa.Schema, partition_by: Sequence[str]) -> Iterator[Finding]:
    """Find columns and partitions of these rows that a new table can't have."""
    columns, wrong = delta_columns(schema)
    yield from wrong
    yield from _partition_problems(columns, partition_by)
    lower = [name.lower() for name in columns.names]
    for name in columns.names:
        if _NO_NAME.search(name) or lower.count(name.lower()) > 1:
            yield _unnameable(name)


def added(schema: pa.Schema, table: DeltaTable) -> list[Field]:
    """Return the columns of the rows that the table lacks, with Delta's types."""
    there = {field.name.lower() for field in table.schema().fields}
    columns = Schema.from_arrow(delta_columns(schema)[0]).fields
    return [Field(each.name, each.type) for each in columns if each.name.lower() not in there]


def misfits(
    schema: pa.Schema, table: DeltaTable, inside: Sequence[str] | None = None, *, adds: bool = False
) -> Iterator[Finding]:
    """Compare the rows' columns with the table's. With `adds`, a column that the table lacks is only a warning.

    For a file, `inside` names the partition columns that it leaves out.
    """
    columns, wrong = delta_columns(schema)
    yield from wrong
    there = {field.name: field for field in arrow_schema(table)}
    by = table.metadata().partition_columns
    if inside is not None and sorted(inside) != sorted(by):
        yield Finding("error", f"the table is partitioned by {by}", "")
    for field in columns:
        kind = there[field.name].type if field.name in there else None
        if kind is None:
            place = f"delta.{quoted_name(table.table_uri.rstrip('/'))}"
            bad = adds and _NO_NAME.search(field.name) is not None
            yield _unnameable(field.name) if bad else lacking(place, field, [*there, *columns.names], adds=adds)
        elif field.type != kind:
            yield Finding("error", f"column {field.name} is {field.type}, the table's is {kind}", f"cast it to {kind}")
    brought = {*schema.names, *(inside or ())}
    for name, field in there.items():
        if name not in brought and (name in by or not field.nullable):
            yield Finding("error", f"the rows have no column {name}", f"select {name} into this sink")


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """Return the table's columns with Arrow's types."""
    return pa.schema(table.schema().to_arrow())


def delta_columns(schema: pa.Schema) -> tuple[pa.Schema, list[Finding]]:
    """Return columns with Delta's types, and a finding for each column that a Delta table can't have."""
    fields, wrong = list[pa.Field](), list[Finding]()
    for field in schema:
        kept = field.with_type(_in_utc(field.type)).remove_metadata()
        try:
            if pa.types.is_null(field.type):
                raise ValueError
            fields += pa.schema(Schema.from_arrow(pa.schema([kept])).to_arrow())
        except Exception:  # deltalake has no class for this error
            fix = f"cast {field.name}, or leave it out"
            wrong.append(Finding("error", f"Delta has no type for column {field.name}, {field.type}", fix))
    return pa.schema(fields), wrong


def _unnameable(name: str) -> Finding:
    return Finding("error", f"Delta can't have a column {name!r}, or not two of this name", "rename it")


def _partition_problems(columns: pa.Schema, by: Sequence[str]) -> Iterator[Finding]:
    for name in by:
        if name not in columns.names:
            yield Finding("error", f"the rows have no column {name}", f"select {name} into this sink")
        elif not any(fits(columns.field(name).type) for fits in _PARTITION_TYPES):
            message = f"partition column {name} is {columns.field(name).type}"
            yield Finding("error", message, "partition by texts, whole numbers, dates or booleans")


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with Delta's timestamps: microseconds, in UTC if they have a zone."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind


def _seconds(interval: str) -> int:
    found = _INTERVAL.fullmatch(interval.strip())
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0
