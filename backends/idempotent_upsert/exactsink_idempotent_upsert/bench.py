"""Copies for `exactsink bench`, one per strategy, with the form of the sink's own table, if there is one.

They are SQLite files; on PostgreSQL schemas; on MariaDB and MySQL databases, which the sink's user must be allowed to
create.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy.dialects.sqlite  # noqa: F401 - here once, not in each process that a bench forks

from exactsink.bench.target import BenchReader, BenchTarget, Place
from exactsink.contract import BackendOptions, ConfigError
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert import strategies  # noqa: F401 - the same
from exactsink_idempotent_upsert.backend import UpsertOptions
from exactsink_idempotent_upsert.mysql.statements import quoted as in_backticks
from exactsink_idempotent_upsert.options import MYSQL
from exactsink_idempotent_upsert.table import GUARD, Table

if TYPE_CHECKING:
    from exactsink_idempotent_upsert.mysql.database import MysqlDatabase

__all__ = ["FileTarget", "ServerTarget", "targets"]

_TABLE = "bench_rows"
_FORM = (
    "SELECT sql FROM sqlite_master WHERE lower(tbl_name) = lower(?) AND sql IS NOT NULL AND type IN ('table', 'index')"
)
_COLUMNS_OF = "information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s"


def targets(options: BackendOptions | None) -> Mapping[str, BenchTarget]:
    """Return both strategies."""
    assert options is None or isinstance(options, UpsertOptions)
    if options is not None and options.product not in ("sqlite", "postgresql", *MYSQL):
        why = "copies are made on SQLite, PostgreSQL, MariaDB and MySQL only"
        raise ConfigError(f"a table on {options.product} is not measured", why=why)
    if options is not None and options.delete_when is not None:
        why = "rows that delete others can't be counted by a reader"
        raise ConfigError("a table with delete_when is not measured", why=why)
    if options is not None and options.product == "postgresql":
        from exactsink_idempotent_upsert.postgres.targets import bench_targets

        return bench_targets(options)
    if options is not None and options.product in MYSQL:
        return {strategy: ServerTarget(strategy, options) for strategy in ("staged", "direct")}
    return {strategy: FileTarget(strategy, options) for strategy in ("staged", "direct")}


@dataclass(frozen=True)
class FileTarget(BenchTarget):
    """A database file: beside the user's where there is one, so on its file system."""

    strategy: str
    given: UpsertOptions | None = None

    @property
    def holds(self) -> str:
        return "the file's write lock, from the start of the commit"

    @property
    def keys(self) -> tuple[str, ...]:
        return ("id",) if self.given is None else self.given.keys

    def make(self, place: Place) -> Mapping[str, Any]:
        path = self._path(place)
        statements = ["PRAGMA journal_mode = WAL", *self._form()]
        with closing(sqlite3.connect(path)) as made:
            for statement in statements:
                made.execute(statement)
        table = _TABLE if self.given is None else self.given.table
        here = {"url": f"sqlite:///{path}", "table": table, "strategy": self.strategy, "keys": list(self.keys)}
        return {**here, "create": True} if len(statements) == 1 else here

    def reader(self, place: Place) -> BenchReader:
        return _TableReader(self._path(place), _TABLE if self.given is None else self.given.name.name)

    def size(self, place: Place) -> int | None:
        return sum(path.stat().st_size for path in self._files(place))

    def drop(self, place: Place) -> None:
        for path in self._files(place):
            path.unlink(missing_ok=True)

    def _form(self) -> list[str]:
        """Return the statements that made the user's table and its indices; none where it is not there."""
        if self.given is None or not self.given.path.exists():
            return []
        with closing(sqlite3.connect(f"file:{self.given.path}?mode=ro", uri=True)) as user:
            return [row[0] for row in user.execute(_FORM, (self.given.name.name,))]

    def _path(self, place: Place) -> Path:
        folder = place.folder if self.given is None else self.given.path.parent
        return folder / f"{place.name}.db"

    def _files(self, place: Place) -> list[Path]:
        path = self._path(place)
        return [file for end in ("", "-wal", "-shm") if (file := path.with_name(path.name + end)).exists()]


class _TableReader(BenchReader):
    def __init__(self, path: Path, table: str) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
        self._count = f"SELECT count(*) FROM {quoted(table)}"

    def rows(self) -> int:
        try:
            [(count,)] = self._connection.execute(self._count)
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return 0
            raise
        return int(count)

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class ServerTarget(BenchTarget):
    """A table of the sink's own name, in a database that the bench makes on its server."""

    strategy: str
    given: UpsertOptions

    @property
    def holds(self) -> str:
        return "locks on rows, from the start of the commit"

    @property
    def keys(self) -> tuple[str, ...]:
        return self.given.keys

    def make(self, place: Place) -> Mapping[str, Any]:
        from sqlalchemy.engine import make_url

        schema, table = self.given.name.schema, self.given.name.name
        here = in_backticks(place.identifier, table)
        url = make_url(self.given.url.get_secret_value()).set(database=place.identifier)
        options: dict[str, Any] = {"url": url.render_as_string(hide_password=False), "table": in_backticks(table)}
        options |= {"strategy": self.strategy, "keys": list(self.keys)}
        there = self._run(f"SELECT COLUMN_NAME FROM {_COLUMNS_OF}", schema, table)
        self._run(f"CREATE DATABASE `{place.identifier}` CHARACTER SET utf8mb4")
        if not there:
            return {**options, "create": True}
        own = in_backticks(schema, table) if schema else in_backticks(table)
        self._run(f"CREATE TABLE {here} LIKE {own}")
        for name in GUARD if self.strategy == "direct" else ():
            if (name,) not in there:
                self._run(f"ALTER TABLE {here} ADD COLUMN {name} BIGINT")
        return options

    def reader(self, place: Place) -> BenchReader:
        return _ServerReader(self, place)

    def size(self, place: Place) -> int | None:
        query = "SELECT sum(DATA_LENGTH + INDEX_LENGTH) FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
        [(size,)] = self._run(query, place.identifier)
        return int(size or 0)

    def drop(self, place: Place) -> None:
        self._run(f"DROP DATABASE IF EXISTS `{place.identifier}`")

    @property
    def database(self) -> MysqlDatabase:
        from exactsink_idempotent_upsert.mysql.database import MysqlDatabase

        given = self.given
        table = Table(given.name.name, given.keys, None, False)
        return MysqlDatabase(given.url.get_secret_value(), given.address, table, given.busy_timeout_seconds)

    def _run(self, statement: str, *values: str | None) -> Sequence[tuple[Any, ...]]:
        database = self.database
        with (
            database.explained("make, measure or drop a copy"),
            closing(database.connect()) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, values or None)
            return tuple(cursor.fetchall())


class _ServerReader(BenchReader):
    def __init__(self, target: ServerTarget, place: Place) -> None:
        self._connection = target.database.connect()
        self._place = (place.identifier, target.given.name.name)

    def rows(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {_COLUMNS_OF}", self._place)
            if not cursor.fetchall():
                return 0
            cursor.execute(f"SELECT count(*) FROM {in_backticks(*self._place)}")
            [(count,)] = cursor.fetchall()
        return int(count)

    def close(self) -> None:
        self._connection.close()
