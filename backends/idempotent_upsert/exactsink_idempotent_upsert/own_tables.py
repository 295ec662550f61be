"""Markers, owners and votes in exactsink's own tables, and errors in the contract's terms, for databases with SQL.

Databases differ in a few words of SQL, and in the call that runs a statement. Executors import this module.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from exactsink.contract import ExactsinkError, Fatal, InDoubt, Retryable
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.sql import counted_by
from exactsink_idempotent_upsert.database import (
    MARKER_TABLE,
    OWNER_TABLE,
    VOTE_TABLE,
    Database,
    Owner,
    Result,
    Session,
    Votes,
)
from exactsink_idempotent_upsert.table import Table

__all__ = ["Refusal", "SqlDatabase", "SqlSession", "made"]

_COLUMNS = {
    MARKER_TABLE: "job {text} NOT NULL, sink {text} NOT NULL, lineage {text}, epoch {number}, generation {number},"
    " token {text}, PRIMARY KEY (job, sink)",
    OWNER_TABLE: "target {text} NOT NULL, job {text}, sink {text}, lineage {text}, PRIMARY KEY (target)",
    VOTE_TABLE: "participant {text} NOT NULL, voted_at {moment}, PRIMARY KEY (participant)",
}
_OF_SINK = "WHERE job = %s AND sink = %s"
_NEW = f"INSERT INTO {MARKER_TABLE} (lineage, epoch, generation, token, job, sink) VALUES (%s, %s, %s, %s, %s, %s)"
_NEXT = f"UPDATE {MARKER_TABLE} SET lineage = %s, epoch = %s, generation = %s, token = %s {_OF_SINK}"
_NEXT += " AND lineage = %s AND epoch = %s AND generation = %s"
_OWNER = f"SELECT job, sink, lineage FROM {OWNER_TABLE} WHERE target = %s"


class Refusal(NamedTuple):
    """A database's error: whether it may pass, its text, and the fix."""

    passes: bool
    said: str
    fix: str


def made(name: str, kinds: Mapping[str, str]) -> str:
    """Return the statement that makes one of these tables, of the types that a database has for text and numbers."""
    return f"CREATE TABLE IF NOT EXISTS {name} ({_COLUMNS[name].format_map(kinds)})"


class SqlSession(Session):
    """A transaction of a database that is used through SQL. A marker is replaced only if it is the one that was read.

    `lock` ends a query whose row must stay unchanged. `absent` inserts a row unless its key exists.
    """

    kinds: Mapping[str, str]
    lock = ""
    absent = "INSERT INTO {} ON CONFLICT DO NOTHING"
    _table: Table
    _stored: Marker | None = None

    @abstractmethod
    def run(self, statement: str, *values: object) -> Result:
        """Run a statement with its values, each at a `%s`."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether there is a table of ours."""

    def define(self, name: str) -> None:
        """Make a table of ours that is not there."""
        self.run(made(name, self.kinds))

    def is_race(self, error: Exception) -> bool:
        """Return whether a marker was refused because another process stored one."""
        return False

    def make(self, *names: str) -> None:
        for name in names:
            if not self.has(name):
                self.define(name)

    def make_marker_table(self) -> None:
        self.make(MARKER_TABLE)

    def marker(self, job: str, sink: str) -> Marker | None:
        return self.read_marker(job, sink, self.lock)

    def read_marker(self, job: str, sink: str, lock: str = "") -> Marker | None:
        query = f"SELECT lineage, epoch, generation, token FROM {MARKER_TABLE} {_OF_SINK}{lock}"
        self._stored = None
        for lineage, epoch, generation, token in self.run(query, job, sink).fetchall():
            self._stored = Marker(job, sink, lineage, epoch, generation, token or "")
        return self._stored

    def store(self, marker: Marker) -> None:
        """Replace the marker that was read, or store the first one. Raises Retryable where a rival did meanwhile."""
        was, raced = self._stored, None
        values = (marker.lineage, marker.epoch, marker.generation, marker.token, marker.job, marker.sink)
        try:
            if was is None:
                done = self.run(_NEW, *values).rowcount != 0
            else:
                done = self.run(_NEXT, *values, was.lineage, was.epoch, was.generation).rowcount == 1
        except Exception as error:
            if not self.is_race(error):
                raise
            done, raced = False, error
        if not done:
            what = f"sink {marker.sink}: another process has changed the target's marker meanwhile"
            raise Retryable(what, why="this driver rolls back its rows", next="exactsink reads it again") from raced

    def owner(self) -> Owner | None:
        return self._owner()

    def _owner(self, lock: str = "") -> Owner | None:
        found = self.run(_OWNER + lock, self._table.target).fetchall()
        return (found[0][0], found[0][1], found[0][2]) if found else None

    @property
    def votes(self) -> Votes:
        return Votes(self.run)

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        return list(self.votes.of(job, sink)) if self.has(VOTE_TABLE) else []

    def take(self, mine: Owner, succeeds: frozenset[str] = frozenset()) -> Owner:
        self.make(OWNER_TABLE, VOTE_TABLE)
        self.run(self.absent.format(f"{OWNER_TABLE} VALUES (%s, %s, %s, %s)"), self._table.target, *mine)
        owner = self._owner(self.lock)
        if owner is not None and owner[:2] == mine[:2] and owner[2] in succeeds:
            self.run(f"UPDATE {OWNER_TABLE} SET lineage = %s WHERE target = %s", mine[2], self._table.target)
            return mine
        return owner or mine


class SqlDatabase(Database):
    """A database with sessions of class `SqlSession`."""

    __slots__ = ()

    @abstractmethod
    def looking(self) -> AbstractContextManager[SqlSession]:
        """Read without a lock. Changes nothing."""

    @abstractmethod
    def refusal(self, error: Exception) -> Refusal | None:
        """Return the meaning of an error of the database or its driver, None for any other error."""

    @contextmanager
    def answered(self, doing: str, safe: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            refusal = None if isinstance(error, ExactsinkError) else self.refusal(error)
            if refusal is None:
                raise
            what = f"could not {doing} in {self.place}: {refusal.said}"
            if refusal.passes:
                raise Retryable(what, why=safe or "the database may answer later", next=refusal.fix) from error
            fix = f"{refusal.fix}, then start the job again"
            raise Fatal(what, why=safe or "the database refuses", next=fix) from error

    def last_marker(self, job: str, sink: str) -> Marker | None:
        with self.looking() as session:
            return session.read_marker(job, sink) if session.has(MARKER_TABLE) else None

    def last_owner(self) -> Owner | None:
        with self.looking() as session:
            return session.owner() if session.has(OWNER_TABLE) else None

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        with self.looking() as session:
            return session.listed(job, sink)

    def by_epoch(self, column: str, first: int) -> Mapping[int | None, int]:
        name = ".".join(self.quoted(part) for part in (self.table.schema, self.table.name) if part)
        with self.looking() as session:
            return dict(session.run(counted_by(self.quoted(column), name, first)).fetchall())
