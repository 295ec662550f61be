"""The `files` backend: its options, what it says of itself, and which rows it can take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import field_validator, model_validator

from exactsink.backend import Backend, BackendOptions, Committer, Writer
from exactsink.errors import ConfigError, Fatal
from exactsink.model import Finding, JobContext, Traits, Txn
from exactsink_files.committer import FilesCommitter
from exactsink_files.writer import JSON_COLUMN, FilesWriter

__all__ = ["FilesBackend", "FilesOptions"]

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://(?P<host>[^/]*))?(?P<path>/.*|)", re.DOTALL)


class FilesOptions(BackendOptions):
    """Say where the files go and what they look like. `path` is made absolute where the options are first read."""

    path: str
    format: Literal["parquet", "json"] = "parquet"
    partition_by: tuple[str, ...] = ()
    compression: Literal["snappy", "zstd", "gzip", "none"] | None = None

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

    @model_validator(mode="after")
    def _compression_has_a_use(self) -> FilesOptions:
        if self.format == "json" and self.compression not in (None, "none"):
            raise ValueError("compression is for format = 'parquet'; JSON lines are written plain")
        return self


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
        """Let the JVM make the JSON lines: `value`, then the partition columns. Raises ConfigError when SQL can't."""
        if self.options.format == "parquet":
            return None
        chosen = self.options.partition_by
        if not chosen:
            return [f"to_json(struct(*)) AS {JSON_COLUMN}"]
        if JSON_COLUMN in chosen:
            raise ConfigError(f"partition column {JSON_COLUMN} has the JSON column's name", next="rename the column")
        for found in _errors(_partition_problems(schema, chosen)):
            raise ConfigError(found.message, next=found.fix)
        rest = ", ".join(_quoted(name) for name in schema.names if name not in chosen)
        return [f"to_json(struct({rest})) AS {JSON_COLUMN}", *map(_quoted, chosen)]

    def problems(self, schema: pa.Schema) -> list[Finding]:
        """Find what keeps rows of the shaped `schema` from being written as the options say."""
        chosen = self.options.partition_by
        found = _partition_problems(schema, chosen)
        if _errors(found):
            return found
        rest = pa.schema([field for field in schema if field.name not in chosen])
        return found + (_parquet_problems(rest) if self.options.format == "parquet" else _json_problems(rest))

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        for found in _errors(self.problems(schema)):
            raise Fatal(f"sink {txn.sink}: {found.message}", next=found.fix)
        options = self.options
        return FilesWriter(
            txn,
            schema,
            ticket.decode(),
            format=options.format,
            partition_by=options.partition_by,
            compression=options.compression or "snappy",
        )

    def committer(self, ctx: JobContext) -> Committer:
        return FilesCommitter(ctx, self.options.path, self.problems)


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


def _json_problems(schema: pa.Schema) -> list[Finding]:
    if schema.names == [JSON_COLUMN] and schema.field(0).type in (pa.string(), pa.large_string()):
        return []
    message = f"format json takes one text column, {JSON_COLUMN}, beside the partition columns: got {schema.names}"
    return [Finding("error", message, "select it with the expressions that shape() gives")]


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _can_partition(kind: pa.DataType) -> bool:
    is_a = pa.types
    tests = (is_a.is_string, is_a.is_large_string, is_a.is_integer, is_a.is_boolean, is_a.is_date)
    return any(test(kind) for test in tests)
