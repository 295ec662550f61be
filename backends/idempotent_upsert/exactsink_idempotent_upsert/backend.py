"""The `idempotent_upsert` backend: its options, what it promises, and what a task refuses before it votes.

A job's epoch is applied in one SQLite transaction together with its marker, so it appears at one moment and is
applied once, whoever commits it and however often. Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field, SecretStr, field_validator

from exactsink.backend import BackendOptions
from exactsink.errors import ConfigError, Fatal
from exactsink.model import Traits
from exactsink.staged import Applier, StagedBackend
from exactsink_idempotent_upsert.values import plain, unstorable

__all__ = ["UpsertBackend", "UpsertOptions"]


class UpsertOptions(BackendOptions):
    """Options of a sink that upserts into one table.

    `keys` name the columns that identify a row. Of several rows with the same keys in one epoch the last one wins
    (partition, then row order); with `order_by` it is the one with the greatest value there, NULL lowest, ties to
    the last. `order_by` compares rows of one epoch only, never with what the table holds: a later epoch always wins.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # a wrong URL may hold a password

    url: SecretStr
    table: str = Field(min_length=1)
    keys: tuple[str, ...] = Field(min_length=1)
    create: bool = False
    order_by: str | None = None
    strategy: Literal["staged"] = "staged"
    busy_timeout_seconds: float = Field(default=30, ge=0)

    @field_validator("url")
    @classmethod
    def _one_sqlite_file(cls, url: SecretStr) -> SecretStr:
        try:
            from exactsink_idempotent_upsert.sqlite import absolute_url
        except ModuleNotFoundError as error:
            install = "pip install 'exactsink[idempotent-upsert]'"
            raise ConfigError(f"backend idempotent_upsert needs {error.name}", next=install) from error
        return SecretStr(absolute_url(url.get_secret_value()))

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


class UpsertBackend(StagedBackend):
    """Upsert rows into one table: INSERT .. ON CONFLICT (keys) DO UPDATE."""

    Options = UpsertOptions
    options: UpsertOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        """Name the file and the table. Not the URL as SQLAlchemy prints it, which differs between its versions."""
        from exactsink_idempotent_upsert.sqlite import database_path

        return f"sqlite:///{database_path(self.options.url.get_secret_value())}#{self.options.table}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=True, needs_shared_staging=True)

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the table could not take as they are, and NULL keys: no upsert ever meets those again."""
        order_by = [self.options.order_by] if self.options.order_by is not None else []
        for name in (*self.options.keys, *order_by):
            if name not in batch.schema.names:
                raise Fatal(
                    f"table {self.options.table}: the rows have no column {name}",
                    why=f"`keys` or `order_by` names it; they have {', '.join(batch.schema.names)}",
                    next="select the column into this sink, or correct the option",
                )
        problem = unstorable(batch)
        if problem is not None:
            raise Fatal(
                f"table {self.options.table}: a row can't be stored: {problem}",
                why="SQLite could not take it after the decision, when it is too late to refuse",
                next="cast the column, or filter such rows, before this sink",
            )
        for key in self.options.keys:
            missing = _missing(batch.column(key))
            if missing:
                raise Fatal(
                    f"table {self.options.table}: key column {key} is NULL (or NaN) in {missing} rows of a batch",
                    why="NULL equals nothing, so an upsert would insert such a row each time it sees it",
                    next=f"filter `{key} IS NOT NULL`, or fill it, before this sink",
                )

    def applier(self) -> Applier:
        from exactsink_idempotent_upsert.sqlite import SqliteApplier

        return SqliteApplier(self.options)


def _missing(column: pa.Array) -> int:
    """Count the values that SQLite stores as NULL."""
    return int(pc.sum(pc.is_null(plain(column), nan_is_null=True)).as_py() or 0)
