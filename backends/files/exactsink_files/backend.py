"""The `files` backend: its options, what it says of itself, and which rows it can take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import field_validator, model_validator

from exactsink.contract import (
    Backend,
    BackendOptions,
    Committer,
    ConfigError,
    Fatal,
    Finding,
    JobContext,
    Traits,
    Txn,
    Writer,
)
from exactsink_files.committer import FilesCommitter
from exactsink_files.writer import FilesWriter, Layout

__all__ = ["FilesBackend", "FilesOptions"]

_LINE = "value"
"""The column of text lines, unless it is named by the header that goes above them."""

_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_SIZE = re.compile(r"(?P<count>[0-9]+) ?(?P<unit>B|KB|MB|GB)")
_TIME_OPTIONS = {  # Spark's own defaults cut times to milliseconds, and old zones' offsets to minutes
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_CSV_OPTIONS = {  # and trim spaces, and escape as few others do
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    **_TIME_OPTIONS,
}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://(?P<host>[^/]*))?(?P<path>/.*|)", re.DOTALL)


class FilesOptions(BackendOptions):
    """Return where the files go and what they look like. `path` is made absolute where the options are first read.

    `target_file_size` is a number of B, KB (1,024 B), MB or GB: a file that has reached it gets no more rows. Without
    it a participant writes one file per partition folder.
    """

    path: str
    """The folder that the files go to: a local path, or `file:///path`."""
    format: Literal["parquet", "json", "csv"] = "parquet"
    """What the files are. `json` is JSON lines."""
    partition_by: tuple[str, ...] = ()
    """Columns that become folders, `column=value`."""
    compression: Literal["snappy", "zstd", "gzip", "none"] | None = None
    """For Parquet; `snappy` when it is left out."""
    header: bool = True
    """For CSV: begin each file with the columns' names."""
    delimiter: str = ","
    """For CSV: the mark between two values."""
    target_file_size: str | None = None
    """`128 MB`, say: a file that has reached it gets no more rows."""

    @field_validator("path")
    @classmethod
    def _local(cls, path: str) -> str:
        url = _URL.fullmatch(path)
        if url is not None:
            if url["scheme"].lower() != "file":
                raise ValueError(
                    f"{url['scheme']}: is not a local path: give a path or a file:// URL (object stores come later)"
                )
            if url["host"] not in (None, "", "localhost"):
                raise ValueError(f"file://{url['host']}/ names another machine: write file:///path, or mount it")
            path = url["path"]
        if not path or "\0" in path:
            raise ValueError("give the folder that the files go to")
        return "/" + os.path.abspath(path).lstrip("/")  # abspath keeps a leading `//`

    @field_validator("partition_by")
    @classmethod
    def _distinct(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if "" in columns or len(set(columns)) != len(columns):
            raise ValueError("name each partition column once, none of them empty")
        return columns

    @field_validator("delimiter")
    @classmethod
    def _one_mark(cls, delimiter: str) -> str:
        if delimiter not in tuple("\t !#$%&'()*+,-./:;<=>?@[]^`{|}~"):
            raise ValueError("give one ASCII mark, a space or a tab; a quote and a backslash are taken")
        return delimiter

    @field_validator("target_file_size")
    @classmethod
    def _readable(cls, size: str | None) -> str | None:
        found = None if size is None else _SIZE.fullmatch(size)
        if size is not None and (found is None or int(found["count"]) == 0):
            raise ValueError("give a whole number above 0 and a unit, B, KB, MB or GB: '128 MB'")
        return size

    @model_validator(mode="after")
    def _choices_have_a_use(self) -> FilesOptions:
        if self.format != "parquet" and self.compression not in (None, "none"):
            raise ValueError("compression is for format = 'parquet'; JSON lines and CSV are written plain")
        if self.format != "csv" and (not self.header or self.delimiter != ","):
            raise ValueError("header and delimiter are for format = 'csv'")
        return self

    @property
    def target_bytes(self) -> int | None:
        """Return the target file size in bytes."""
        found = _SIZE.fullmatch(self.target_file_size or "")
        return None if found is None else int(found["count"]) * _UNITS[found["unit"]]


class FilesBackend(Backend):
    """Files that get their names after the decision; each appears whole, an epoch's files one after another."""

    Options = FilesOptions
    options: FilesOptions

    @property
    def strategy(self) -> str:
        return "rename"

    @property
    def target(self) -> str:
        return f"file://{self.options.path}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=False, can_lose_votes=False, visible_early=False)

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Let the JVM make the lines of text formats, then the partition columns. Raises ConfigError when SQL can't."""
        if self.options.format == "parquet":
            return None
        chosen = self.options.partition_by
        rest = [field for field in schema if field.name not in chosen]
        found = _partition_problems(schema, chosen)
        for problem in _errors(found + (_csv_problems(rest) if self.options.format == "csv" else [])):
            raise ConfigError(problem.message, next=problem.fix)
        fields = ", ".join(_quoted(field.name) for field in rest) if chosen else "*"
        name, line = _LINE, f"to_json(struct({fields}))"
        if self.options.format == "json" and any(_has_time(field.type) for field in rest):
            line = f"to_json(struct({fields}), {_sql_map(_TIME_OPTIONS)})"
        if self.options.format == "csv":
            options = _sql_map({"sep": self.options.delimiter, **_CSV_OPTIONS})
            line = f"to_csv(struct({fields}), {options})"
            if self.options.header:  # the writers get it as the column's name: they know no other column
                name = self.options.delimiter.join(_csv_name(field.name) for field in rest)
        if name in chosen:
            raise ConfigError(f"partition column {name} has the name of the lines' column", next="rename the column")
        return [f"{line} AS {name if name == _LINE else _quoted(name)}", *map(_quoted, chosen)]

    def problems(self, schema: pa.Schema) -> list[Finding]:
        """Find what keeps rows of the shaped `schema` from being written as the options say."""
        chosen = self.options.partition_by
        found = _partition_problems(schema, chosen)
        if _errors(found):
            return found
        rest = pa.schema([field for field in schema if field.name not in chosen])
        return found + (_parquet_problems(rest) if self.options.format == "parquet" else self._line_problems(rest))

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        for found in _errors(self.problems(schema)):
            raise Fatal(f"sink {txn.sink}: {found.message}", next=found.fix)
        options = self.options
        layout = Layout(
            format=options.format,
            partition_by=options.partition_by,
            compression=options.compression or "snappy",
            header=options.format == "csv" and options.header,
            target_bytes=options.target_bytes,
        )
        return FilesWriter(txn, schema, ticket.decode(), layout)

    def committer(self, ctx: JobContext) -> Committer:
        return FilesCommitter(ctx, self.options.path, self.problems)

    def _line_problems(self, schema: pa.Schema) -> list[Finding]:
        form = self.options.format
        name = schema.names[0] if form == "csv" and self.options.header and schema.names else _LINE
        if schema.names == [name] and schema.field(0).type in (pa.string(), pa.large_string()):
            return []
        message = f"format {form} takes one text column, {name}, beside the partition columns: got {schema.names}"
        return [Finding("error", message, "select it with the expressions that shape() gives")]


def _partition_problems(schema: pa.Schema, chosen: Sequence[str]) -> list[Finding]:
    """Find partition columns that can't be folders, and rows of which nothing would be left."""
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
            fix = f"cast it in the frame, with CAST(`{name}` AS STRING) say, or take it out of partition_by"
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


def _parquet_problems(schema: pa.Schema) -> list[Finding]:
    """Find columns that Parquet can't hold, by writing an empty file in memory."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:
        message = f"parquet can't hold these rows: {error}"
        return [Finding("error", message, "cast the column, or leave it out of columns")]
    return []


def _csv_problems(fields: Sequence[pa.Field]) -> list[Finding]:
    """Find columns that would come back from CSV as something else, or not at all."""
    found = []
    for field in fields:
        name, kind = _quoted(field.name), field.type
        if pa.types.is_nested(kind):
            problem, fix = f"is of type {kind}, which CSV can't hold", f"cast it in the frame, with to_json({name}) say"
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            problem, fix = f"is of type {kind}, which CSV can't hold", f"cast it in the frame, with base64({name}) say"
        elif "*" in field.name:
            problem, fix = "has a * in its name, which the header can't be given", "rename the column"
        elif field.nullable and len(fields) == 1:
            problem = "is the only one: its NULL would be an empty line, which readers skip"
            fix = f"replace NULL in the frame, with coalesce({name}, '') say, or add a column that has none"
        else:
            continue
        found.append(Finding("error", f"column {field.name} {problem}", fix))
    return found


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _sql_map(options: Mapping[str, str]) -> str:
    return f"map({', '.join(map(_literal, chain(*options.items())))})"


def _has_time(kind: pa.DataType) -> bool:
    """Return whether values of a type hold a timestamp, at any depth."""
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return pa.types.is_timestamp(kind) or any(map(_has_time, inner))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _csv_name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else '"' + name.replace('"', '""') + '"'


def _can_partition(kind: pa.DataType) -> bool:
    is_a = pa.types
    tests = (is_a.is_string, is_a.is_large_string, is_a.is_integer, is_a.is_boolean, is_a.is_date)
    return any(test(kind) for test in tests)
