"""Targets of the `idempotent_upsert` backend for the conformance kit, on every database: a table, one per strategy.

On a server each scenario creates its own database, and leaves it there, because the server is for tests.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy.dialects.mysql.pymysql
import sqlalchemy.dialects.sqlite  # noqa: F401 - here once, not in each process that the kit forks
from sqlalchemy.engine import make_url

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget, recorded
from exactsink.toolkit.storage import AnyPath, path_of
from exactsink_idempotent_upsert import strategies  # noqa: F401 - the same
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.mysql import database as mysql
from exactsink_idempotent_upsert.table import Table

if TYPE_CHECKING:
    import pymysql

__all__ = [
    "DirectServerTarget",
    "DirectTarget",
    "ServerTarget",
    "StagedEvidence",
    "StagedServerTarget",
    "StagedTarget",
    "TableTarget",
    "lose_what_tasks_wrote",
    "mysql_targets",
    "targets",
]

_RECORDINGS = Path(__file__).parent / "conformance.json"

_TABLES = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE flights (
        id INTEGER PRIMARY KEY, kind TEXT, amount REAL, exactsink_epoch BIGINT, exactsink_generation BIGINT
    );
    CREATE TABLE changes (n INTEGER PRIMARY KEY, id INTEGER);
    CREATE TRIGGER inserted AFTER INSERT ON flights BEGIN INSERT INTO changes (id) VALUES (new.id); END;
    CREATE TRIGGER updated AFTER UPDATE ON flights BEGIN INSERT INTO changes (id) VALUES (new.id); END;
"""
_ON_SERVER = (
    "CREATE TABLE flights (id BIGINT PRIMARY KEY, kind TEXT, amount DOUBLE, {0}_epoch INT, {0}_generation INT)",
    "CREATE TABLE changes (n BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT)",
    "CREATE TRIGGER inserted AFTER INSERT ON flights FOR EACH ROW INSERT INTO changes (id) VALUES (new.id)",
    "CREATE TRIGGER updated AFTER UPDATE ON flights FOR EACH ROW INSERT INTO changes (id) VALUES (new.id)",
)
_MYSQL, _POSTGRES = "EXACTSINK_MYSQL_URL", "EXACTSINK_POSTGRES_URL"


@dataclass(frozen=True)
class TableTarget(ConformanceTarget):
    """A table whose triggers log every change. A row counts as applied each time it is inserted or updated."""

    strategy: str

    def backend(self, folder: Path) -> Backend:
        with closing(sqlite3.connect(folder / "table.db")) as connection:
            connection.executescript(_TABLES)
        # A driver that is stopped inside its transaction holds the lock: don't wait for it.
        given = {"url": f"sqlite:///{folder / 'table.db'}", "table": "flights", "busy_timeout_seconds": 0.1}
        return UpsertBackend(UpsertOptions.model_validate({**given, "keys": ["id"], "strategy": self.strategy}))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(row for ids in self.order(folder) for row in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        with closing(sqlite3.connect(folder / "table.db")) as connection:
            return [[row[0] for row in connection.execute("SELECT id FROM changes ORDER BY n")]]


@dataclass(frozen=True)
class DirectTarget(TableTarget):
    """The target with strategy `direct`, whose votes get lost together with their rows."""

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Let them be gone, as in a file from a copy."""
        lose_what_tasks_wrote(lambda statement: self._run(folder, statement), committables)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove the votes, and the marker."""
        self._run(folder, "DELETE FROM exactsink_epochs")
        self._run(folder, "DELETE FROM exactsink_votes")

    def _run(self, folder: Path, statement: str) -> Sequence[Any]:
        with closing(sqlite3.connect(folder / "table.db", isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()


def lose_what_tasks_wrote(run: Callable[[str], Sequence[Any]], committables: Sequence[Committable]) -> None:
    """Remove votes, the rows that were written with them, and the log of those: tasks of the kit have as many rows
    each, by their ids.
    """
    for vote in sorted(committables, key=lambda committable: committable.txn.partition, reverse=True):
        where = (
            f"exactsink_epoch = {vote.txn.epoch} ORDER BY id LIMIT {vote.rows} OFFSET {vote.txn.partition * vote.rows}"
        )
        ids = [str(found) for (found,) in run(f"SELECT id FROM flights WHERE {where}")]
        run(f"DELETE FROM flights WHERE id IN ({', '.join(ids)})")
        run(f"DELETE FROM exactsink_votes WHERE participant = '{vote.txn.id}'")
    run("DELETE FROM changes WHERE id NOT IN (SELECT id FROM flights)")


class StagedEvidence(ConformanceTarget):
    """The part of strategy `staged` in a table's target: staged files and a marker, evidence that can get lost."""

    strategy: str

    def remove_marker(self, folder: Path) -> None:
        """Let the target forget which epochs it has."""
        raise NotImplementedError

    def unfit(self, rows: pa.Table) -> pa.Table:
        return rows.set_column(0, rows.field("id"), pa.nulls(rows.num_rows, pa.int64()))

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove the staged files, like a person who takes them for rubbish."""
        for committable in committables:
            self._staged(folder, committable.txn.id).unlink()

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove the staged files, and the marker."""
        for committable in committables:
            self._staged(folder, committable.txn.id).unlink(missing_ok=True)
        self.remove_marker(folder)

    def foreign(self, folder: Path) -> None:
        staging = folder / "staging"
        staging.mkdir()
        (staging / "somebody's own.arrow").write_text("somebody's")

    def foreign_stands(self, folder: Path) -> bool:
        path = self._staged(folder, "somebody's own")
        return path.exists() and path.read_text() == "somebody's"

    def previous(self, folder: Path) -> Sequence[Committable]:
        return recorded(_RECORDINGS, self.strategy, folder)  # staged work is the same on every database

    def _staged(self, folder: Path, name: str) -> AnyPath:
        return path_of(self.staging(folder)) / f"{name}.arrow"


@dataclass(frozen=True)
class StagedTarget(StagedEvidence, TableTarget):
    """The same with strategy `staged`."""

    def remove_marker(self, folder: Path) -> None:
        with closing(sqlite3.connect(folder / "table.db")) as connection, connection:
            connection.execute("DELETE FROM exactsink_epochs")


def mysql_targets(url: str) -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, on this server."""
    return {"mysql_staged": StagedServerTarget("staged", url), "mysql_direct": DirectServerTarget("direct", url)}


@dataclass(frozen=True)
class ServerTarget(ConformanceTarget):
    """A table whose triggers log every change. A row counts as applied each time it is inserted or updated."""

    strategy: str
    url: str

    def backend(self, folder: Path) -> Backend:
        with closing(self._connect(self.url)) as connection:
            connection.query(f"CREATE DATABASE {_database(folder)} CHARACTER SET utf8mb4")
        for statement in _ON_SERVER:
            self.run(folder, statement.format("exactsink"))
        # A driver that is stopped inside its transaction holds locks: don't wait long for it.
        given = {"url": self.there(folder), "table": "flights", "keys": ["id"], "busy_timeout_seconds": 1}
        return UpsertBackend(UpsertOptions.model_validate({**given, "strategy": self.strategy}))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(row for ids in self.order(folder) for row in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        return [[row[0] for row in self.run(folder, "SELECT id FROM changes ORDER BY n")]]

    def there(self, folder: Path) -> str:
        return make_url(self.url).set(database=_database(folder)).render_as_string(hide_password=False)

    def run(self, folder: Path, statement: str) -> Sequence[Any]:
        with closing(self._connect(self.there(folder))) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    def _connect(self, url: str) -> pymysql.Connection[Any]:
        return mysql.MysqlDatabase(url, url, Table("flights", ("id",), None, False), 10).connect()


@dataclass(frozen=True)
class DirectServerTarget(ServerTarget):
    """The target with strategy `direct`. A failover can lose its votes, together with their rows."""

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        lose_what_tasks_wrote(lambda statement: self.run(folder, statement), committables)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove the votes, and the marker."""
        self.run(folder, "DELETE FROM exactsink_epochs")
        self.run(folder, "DELETE FROM exactsink_votes")


@dataclass(frozen=True)
class StagedServerTarget(StagedEvidence, ServerTarget):
    """The same with strategy `staged`."""

    def remove_marker(self, folder: Path) -> None:
        self.run(folder, "DELETE FROM exactsink_epochs")


def _database(folder: Path) -> str:
    return "kit_" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def targets() -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, including PostgreSQL, MariaDB and MySQL if the environment names a server."""
    found: dict[str, ConformanceTarget] = {"staged": StagedTarget("staged"), "direct": DirectTarget("direct")}
    if url := os.environ.get(_MYSQL):
        found |= mysql_targets(url)
    if url := os.environ.get(_POSTGRES):
        from exactsink_idempotent_upsert.postgres.targets import kit_targets

        found |= kit_targets(url)
    return found
