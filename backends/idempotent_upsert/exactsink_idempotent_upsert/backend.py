"""The `idempotent_upsert` backend: its options, what it promises, and what a task refuses before it votes.

Staged, an epoch is applied in one SQLite transaction together with its marker, so it appears at one moment and is
applied once, whoever commits it and however often. Directly, tasks upsert before the decision, under a guard on each
row. Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from exactsink.contract import (
    Applier,
    BackendOptions,
    Committer,
    ConfigError,
    Fatal,
    JobContext,
    StagedBackend,
    Traits,
    Txn,
    Writer,
)
from exactsink.toolkit.json_columns import plain
from exactsink.toolkit.local_paths import real_path
from exactsink.toolkit.spark_sql import quoted_name
from exactsink_idempotent_upsert.limits import CheckedWriter, Ticket
from exactsink_idempotent_upsert.table import DELETED, Table

if TYPE_CHECKING:
    from exactsink_idempotent_upsert.database import Database

__all__ = ["UpsertBackend", "UpsertOptions"]

_PREFIX = "sqlite:///"


class UpsertOptions(BackendOptions):
    """Options of a sink that upserts into one table.

    `keys` name the columns that identify a row. Of several rows with the same keys in one epoch the last one wins
    (partition, then row order); with `order_by` it is the one with the greatest value there, NULL lowest, ties to
    the last. `order_by` compares rows of one epoch only, never with what the table holds: a later epoch always wins.

    `delete_when` is an SQL condition: a row for which it is true deletes its key's row instead, in the same order. It
    may read any column of the job's frame. `exclude` names columns of the rows that are not stored, such as the one
    that it reads.
    """

    url: SecretStr
    """A SQLAlchemy URL, `sqlite:///path/to/file.db`."""
    table: str = Field(min_length=1)
    """The table."""
    keys: tuple[str, ...] = Field(min_length=1)
    """The columns that identify a row."""
    create: bool = False
    """Make the table where there is none."""
    order_by: str | None = None
    """Of rows with the same keys in one epoch, the one with the greatest value here wins."""
    delete_when: str | None = Field(default=None, min_length=1)
    """A SQL condition; a row for which it is true deletes its key's row."""
    exclude: tuple[str, ...] = ()
    """Columns of the rows that are not stored."""
    strategy: Literal["staged", "direct"] = "staged"
    """When rows are upserted: after the decision, or by the tasks."""
    busy_timeout_seconds: float = Field(default=30, ge=0)
    """How long to wait for another program's lock on the file."""

    @property
    def path(self) -> Path:
        return Path(self.url.get_secret_value().removeprefix(_PREFIX))

    @field_validator("url")
    @classmethod
    def _one_sqlite_file(cls, url: SecretStr, info: ValidationInfo) -> SecretStr:
        """Check the URL, and make its path absolute where the options are first read. No error repeats the URL."""
        try:
            from sqlalchemy.engine import make_url
            from sqlalchemy.exc import ArgumentError
        except ModuleNotFoundError as error:
            install = "pip install 'exactsink[idempotent-upsert]'"
            raise ConfigError(f"backend idempotent_upsert needs {error.name}", next=install) from error
        try:
            given = make_url(url.get_secret_value())
        except (ArgumentError, ValueError):
            raise ValueError(f"not a SQLAlchemy URL: write {_PREFIX}path/to/file.db") from None
        if given.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise ValueError(f"{given.drivername} is not supported: SQLite is, so far ({_PREFIX}path/to/file.db)")
        if given.host or given.username or given.password or given.query:
            raise ValueError(f"a SQLite URL holds a path only: {_PREFIX}path/to/file.db (four slashes: absolute)")
        if not given.database or given.database.startswith((":memory:", "file:")):
            raise ValueError(f"a database in memory ends with its process: name a file, {_PREFIX}path/to/file.db")
        return SecretStr(f"{_PREFIX}{real_path(given.database, info.context)}")

    @field_validator("table")
    @classmethod
    def _not_a_reserved_table(cls, table: str) -> str:
        if table.lower().startswith(("exactsink_", "sqlite_")):
            raise ValueError(f"{table}: names that begin with exactsink_ or sqlite_ are taken")
        return table

    @field_validator("keys")
    @classmethod
    def _distinct(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if "" in keys or len({key.lower() for key in keys}) < len(keys):
            raise ValueError("each key names a column, and none of them twice")
        return keys

    @model_validator(mode="after")
    def _agree(self) -> UpsertOptions:
        if self.strategy == "direct" and self.delete_when is not None:
            raise ValueError(
                "strategy direct can't delete: a deleted row loses the version that guards it, so that an older, late"
                " write would bring it back; take strategy staged"
            )
        if excluded := set(self.keys) & set(self.exclude):
            raise ValueError(f"`exclude` names {', '.join(sorted(excluded))}, which the keys need")
        return self


class UpsertBackend(StagedBackend):
    """Upsert rows into one table: INSERT .. ON CONFLICT (keys) DO UPDATE."""

    Options = UpsertOptions
    options: UpsertOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"{_PREFIX}{self.options.path}#{self.options.table}"

    @property
    def traits(self) -> Traits:
        if self.options.strategy == "direct":
            return Traits(visible_early=True, needs_epoch_order=True, marks=True)
        return Traits(atomic_visibility=True, needs_shared_staging=True, marks=True)

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Drop what is not needed, and add whether a row deletes: a NULL condition does not. Raises ConfigError."""
        options = self.options
        if options.delete_when is None and not options.exclude:
            return None
        for name in options.exclude:
            if name not in schema.names:
                has = ", ".join(schema.names)
                raise ConfigError(f"`exclude` names column {name}, the rows have {has}", next="correct `exclude`")
        kept = [name for name in schema.names if name not in options.exclude or name == options.order_by]
        expressions = [quoted_name(name) for name in kept]
        if options.delete_when is None:
            return expressions
        if DELETED in map(str.lower, kept):
            raise ConfigError(f"a column is named {DELETED}, which `delete_when` needs", next="rename it")
        return [*expressions, f"CASE WHEN (\n{options.delete_when}\n) THEN true ELSE false END AS {DELETED}"]

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        had = Ticket.loaded(ticket)
        return CheckedWriter(self._writer(txn, schema, had.given), self.options.table, had.limits)

    def _writer(self, txn: Txn, schema: pa.Schema, given: str) -> Writer:
        if self.options.strategy == "staged":
            return super().writer(txn, schema, given.encode())
        from exactsink_idempotent_upsert.strategies import DirectWriter

        return DirectWriter(self._database(), self.check_batch, txn, given)

    def committer(self, ctx: JobContext) -> Committer:
        from exactsink_idempotent_upsert.strategies import DirectCommitter, UpsertCommitter

        kind = UpsertCommitter if self.options.strategy == "staged" else DirectCommitter
        return kind(ctx, self._database())

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the table could not take as they are, and NULL keys: no upsert ever meets those again."""
        options = self.options
        flag = None if options.delete_when is None else DELETED
        for name in filter(None, (*options.keys, options.order_by, flag)):
            if name not in batch.schema.names:
                raise Fatal(
                    f"table {options.table}: the rows have no column {name}",
                    why=f"`keys`, `order_by` or `delete_when` needs it; they have {', '.join(batch.schema.names)}",
                    next="select the column into this sink, or correct the option",
                )
        problem = self._database().unstorable(batch)
        if problem is not None:
            raise Fatal(
                f"table {options.table}: a row can't be stored: {problem}",
                why="SQLite could not take it after the decision, when it is too late to refuse",
                next="cast the column, or filter such rows, before this sink",
            )
        for key in options.keys:  # SQLite stores NaN as NULL
            missing = pc.sum(pc.is_null(plain(batch.column(key)), nan_is_null=True)).as_py()
            if missing:
                raise Fatal(
                    f"table {options.table}: key column {key} is NULL (or NaN) in {missing} rows of a batch",
                    why="NULL equals nothing, so an upsert would insert such a row each time it sees it",
                    next=f"filter `{key} IS NOT NULL`, or fill it, before this sink",
                )

    def applier(self) -> Applier:
        from exactsink_idempotent_upsert.strategies import UpsertApplier

        return UpsertApplier(self._database())

    def _database(self) -> Database:
        from exactsink_idempotent_upsert.sqlite import SqliteDatabase

        options = self.options
        deletes, guarded = options.delete_when is not None, options.strategy == "direct"
        table = Table(options.table, options.keys, options.order_by, options.create, options.exclude, deletes, guarded)
        return SqliteDatabase(options.path, table, options.busy_timeout_seconds)
