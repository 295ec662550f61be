"""Targets of the `idempotent_upsert` backend for the conformance kit: a table of MariaDB or MySQL, one per strategy.

Each scenario gets a database of its own, and leaves it there: the server is one for tests.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy.dialects.mysql.pymysql  # noqa: F401 - here once, not in each process that the kit forks
from sqlalchemy.engine import make_url

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.mysql import database as mysql
from exactsink_idempotent_upsert.sqlite.conformance import StagedEvidence, lose_what_tasks_wrote
from exactsink_idempotent_upsert.table import Table

if TYPE_CHECKING:
    import pymysql

__all__ = ["DirectServerTarget", "ServerTarget", "StagedServerTarget", "targets_on"]

_TABLES = (
    "CREATE TABLE flights (id BIGINT PRIMARY KEY, kind TEXT, amount DOUBLE, {0}_epoch INT, {0}_generation INT)",
    "CREATE TABLE changes (n BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT)",
    "CREATE TRIGGER inserted AFTER INSERT ON flights FOR EACH ROW INSERT INTO changes (id) VALUES (new.id)",
    "CREATE TRIGGER updated AFTER UPDATE ON flights FOR EACH ROW INSERT INTO changes (id) VALUES (new.id)",
)


def targets_on(url: str) -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, on this server."""
    return {"mysql_staged": StagedServerTarget("staged", url), "mysql_direct": DirectServerTarget("direct", url)}


@dataclass(frozen=True)
class ServerTarget(ConformanceTarget):
    """A table whose triggers log every change. A row was applied as often as it was inserted or updated."""

    strategy: str
    url: str

    def backend(self, folder: Path) -> Backend:
        with closing(self._connect(self.url)) as connection:
            connection.query(f"CREATE DATABASE {_database(folder)} CHARACTER SET utf8mb4")
        for statement in _TABLES:
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
    """The same with strategy `direct`, whose votes a failover can lose, together with their rows."""

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
