"""SQLite files for `exactsink bench`: one per strategy, with the form of a sink's own table where there is one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy.dialects.sqlite  # noqa: F401 - here once, not in each process that a bench forks

from exactsink.bench.target import BenchReader, BenchTarget, Place
from exactsink.contract import BackendOptions, ConfigError
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert import strategies  # noqa: F401 - the same
from exactsink_idempotent_upsert.backend import UpsertOptions

__all__ = ["FileTarget", "targets"]

_TABLE = "bench_rows"
_FORM = (
    "SELECT sql FROM sqlite_master WHERE lower(tbl_name) = lower(?) AND sql IS NOT NULL AND type IN ('table', 'index')"
)


def targets(options: BackendOptions | None) -> Mapping[str, BenchTarget]:
    """Return both strategies."""
    assert options is None or isinstance(options, UpsertOptions)
    if options is not None and options.delete_when is not None:
        why = "rows that delete others can't be counted by a reader"
        raise ConfigError("a table with delete_when is not measured", why=why)
    return {strategy: FileTarget(strategy, options) for strategy in ("staged", "direct")}


@dataclass(frozen=True)
class FileTarget(BenchTarget):
    """A database file: beside the user's where there is one, so on its file system."""

    strategy: str
    given: UpsertOptions | None = None

    @property
    def holds(self) -> str:
        return "the file's write lock, from the begin of the commit"

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
