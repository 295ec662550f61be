"""The `files` backend: its options, what it says of itself, and which rows it can take."""

from __future__ import annotations

import os
import re
from typing import Literal

import pyarrow as pa
from pydantic import field_validator, model_validator

from exactsink.backend import Backend, BackendOptions, Committer, Writer
from exactsink.errors import ConfigError, Fatal
from exactsink.model import Finding, JobContext, Traits, Txn
from exactsink_files.committer import FilesCommitter
from exactsink_files.partitions import name_problems, type_problems
from exactsink_files.writer import JSON_COLUMN, FilesWriter, parquet_problems

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

    def __init__(self, options: FilesOptions) -> None:
        super().__init__(options)

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
        problems = name_problems(schema, chosen)
        if JSON_COLUMN in chosen:
            problems.append(
                Finding("error", f"partition column {JSON_COLUMN} has the name of the JSON column", "rename the column")
            )
        for found in filter(_is_error, problems):
            raise ConfigError(found.message, next=found.fix)
        rest = ", ".join(_quoted(name) for name in schema.names if name not in chosen)
        return [f"to_json(struct({rest})) AS {JSON_COLUMN}", *map(_quoted, chosen)]

    def problems(self, schema: pa.Schema) -> list[Finding]:
        """Find what keeps rows of the shaped `schema` from being written as the options say."""
        chosen = self.options.partition_by
        found = name_problems(schema, chosen) + type_problems(schema, chosen)
        if any(map(_is_error, found)):
            return found
        rest = pa.schema([field for field in schema if field.name not in chosen])
        if self.options.format == "parquet":
            return found + parquet_problems(rest)
        if rest.names != [JSON_COLUMN] or not _is_text(rest.field(0).type):
            message = (
                f"format json takes one text column, {JSON_COLUMN}, beside the partition columns: got {rest.names}"
            )
            found.append(Finding("error", message, "select it with the expressions that shape() gives"))
        return found

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        for found in filter(_is_error, self.problems(schema)):
            raise Fatal(f"sink {txn.sink}: {found.message}", next=found.fix)
        return FilesWriter(self.options, txn, schema, ticket.decode())

    def committer(self, ctx: JobContext) -> Committer:
        return FilesCommitter(ctx, self.options.path, self.problems)


def _is_error(finding: Finding) -> bool:
    return finding.severity == "error"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
