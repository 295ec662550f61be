"""The JVM's expressions for text formats, and the rows that a format or a partition folder can't hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.contract import ConfigError, Finding
from exactsink.toolkit.spark_sql import EXACT_TIMES, quoted_name, text_map
from exactsink.toolkit.tabular.json_lines import expressions, impossible
from exactsink.toolkit.tabular.options import TabularOptions

__all__ = ["errors", "problems", "shape"]

_LINE = "value"
"""The column of CSV's lines, unless the header above them names it."""

_RENAMED = "rename all but one of them"
_SHAPED = "select it with the expressions that shape() gives"

_CSV_OPTIONS = {  # by default Spark trims spaces, and escapes as few others do
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    **EXACT_TIMES,
}


def shape(options: TabularOptions, schema: pa.Schema) -> list[str] | None:
    """Let the JVM make CSV's lines, or the values that JSON needs it for, then the partition columns.

    Raises ConfigError if SQL can't.
    """
    if options.format == "parquet":
        return None
    chosen = options.partition_by
    rest = [field for field in schema if field.name not in chosen]
    found = _partition_problems(schema, chosen)
    for problem in errors(found + (_csv_problems(rest) if options.format == "csv" else [])):
        raise ConfigError(problem.message, next=problem.fix)
    folders = list(map(quoted_name, chosen))
    if options.format == "json":
        return [*expressions(rest), *folders]
    fields = ", ".join(quoted_name(field.name) for field in rest) if chosen else "*"
    line = f"to_csv(struct({fields}), {text_map({'sep': options.delimiter, **_CSV_OPTIONS})})"
    name = _LINE
    if options.header:  # the writers get the header as the column's name, because they know no other column
        name = options.delimiter.join(_csv_name(field.name) for field in rest)
    if name in chosen:
        raise ConfigError(f"partition column {name} has the name of the lines' column", next="rename the column")
    return [f"{line} AS {name if name == _LINE else quoted_name(name)}", *folders]


def problems(options: TabularOptions, schema: pa.Schema) -> list[Finding]:
    """Find why rows of the shaped `schema` can't be written as the options require."""
    chosen = options.partition_by
    found = _partition_problems(schema, chosen) + _folded_problems(schema)
    if errors(found):
        return found
    rest = pa.schema([field for field in schema if field.name not in chosen])
    tests = {"parquet": _parquet_problems, "json": _json_problems, "csv": _csv_line_problems}
    return found + tests[options.format](options, rest)


def _folded_problems(schema: pa.Schema) -> list[Finding]:
    """Find columns whose names differ only in case: Spark ignores case, and can't read such files."""
    by_name: dict[str, list[str]] = {}
    for name in schema.names:
        by_name.setdefault(name.lower(), []).append(name)
    alike = [sorted(set(names)) for names in by_name.values() if len(set(names)) > 1]
    return [
        Finding(
            "error",
            f"columns {' and '.join(names)} are one column to readers that ignore case, for example Spark",
            _RENAMED,
        )
        for names in alike
    ]


def _csv_line_problems(options: TabularOptions, schema: pa.Schema) -> list[Finding]:
    name = schema.names[0] if options.header and schema.names else _LINE
    if schema.names == [name] and schema.field(0).type in (pa.string(), pa.large_string()):
        return []
    message = f"format csv takes one text column, {name}, beside the partition columns: got {schema.names}"
    return [Finding("error", message, _SHAPED)]


def _json_problems(_: TabularOptions, schema: pa.Schema) -> list[Finding]:
    bad = [f"{field.name} ({field.type})" for field in impossible(schema)]
    if not bad:
        return []
    return [Finding("error", f"format json can't write the columns as they are: {', '.join(bad)}", _SHAPED)]


def _partition_problems(schema: pa.Schema, chosen: Sequence[str]) -> list[Finding]:
    """Find partition columns that can't be folders, and rows that have no other columns."""
    found = []
    for name in chosen:
        types = [field.type for field in schema if field.name == name]
        severity: Literal["error", "warning"] = "error"
        if not types:
            problem = f"is not in the rows: they have {', '.join(schema.names)}"
            fix = "name one of these columns in partition_by, or add it to columns"
        elif len(types) > 1:
            problem, fix = f"is in the rows {len(types)} times", "rename all but one of them"
        elif not _can_partition(types[0]):
            problem = f"is of type {types[0]}: string, integer, boolean and date are possible"
            fix = f"cast it in the frame, for example CAST(`{name}` AS STRING), or take it out of partition_by"
        elif name.startswith("."):
            problem, fix = "makes folders that begin with a dot, which readers skip", "rename the column"
        elif name.startswith("_"):
            severity = "warning"
            problem = "makes folders that begin with `_`, which pyarrow and pandas skip"
            fix = "rename the column, unless only Spark reads the files"
        else:
            continue
        found.append(Finding(severity, f"partition column {name} {problem}", fix))
    if chosen and not set(schema.names) - set(chosen):
        problem = "all columns are partition columns: the files would have none"
        found.append(Finding("error", problem, "take a column out of partition_by, or add one to columns"))
    return found


def _parquet_problems(_: TabularOptions, schema: pa.Schema) -> list[Finding]:
    """Find columns that Parquet can't hold, or would return as another type, by writing an empty file in memory."""
    lossy = [field.name for field in schema if _has_interval(field.type)]
    if lossy:
        return [
            Finding(
                "error",
                f"column {name} is INTERVAL, which Parquet lacks: it would be read back as BIGINT",
                f"cast it in the frame: CAST({quoted_name(name)} AS STRING)",
            )
            for name in lossy
        ]
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:
        message = f"parquet can't hold these rows: {error}"
        return [Finding("error", message, "cast the column, or leave it out of columns")]
    return []


def _has_interval(kind: pa.DataType) -> bool:
    parts = (kind.field(nth).type for nth in range(kind.num_fields))
    return pa.types.is_duration(kind) or any(map(_has_interval, parts))


def _csv_problems(fields: Sequence[pa.Field]) -> list[Finding]:
    """Find columns that CSV can't hold, or would return as another value."""
    found = []
    for field in fields:
        name, kind = quoted_name(field.name), field.type
        if pa.types.is_nested(kind):
            problem, fix = (
                f"is of type {kind}, which CSV can't hold",
                f"cast it in the frame, for example with to_json({name})",
            )
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            problem, fix = (
                f"is of type {kind}, which CSV can't hold",
                f"cast it in the frame, for example with base64({name})",
            )
        elif "*" in field.name:
            problem, fix = "has a * in its name, which the header can't be given", "rename the column"
        elif field.nullable and len(fields) == 1:
            problem = "is the only one: its NULL would be an empty line, which readers skip"
            fix = f"replace NULL in the frame, for example with coalesce({name}, ''), or add a column that has none"
        else:
            continue
        found.append(Finding("error", f"column {field.name} {problem}", fix))
    return found


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that keep a job from starting."""
    return [finding for finding in findings if finding.severity == "error"]


def _csv_name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else '"' + name.replace('"', '""') + '"'


def _can_partition(kind: pa.DataType) -> bool:
    is_a = pa.types
    tests = (is_a.is_string, is_a.is_large_string, is_a.is_integer, is_a.is_boolean, is_a.is_date)
    return any(test(kind) for test in tests)
