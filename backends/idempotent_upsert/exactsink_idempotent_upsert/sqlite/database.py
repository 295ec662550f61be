"""A SQLite file: its connections and durable transactions, and the marker and owner tables in it.

Executors import this module for the direct strategy.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Fatal, Txn
from exactsink.toolkit.sql import ascii_lower, quoted
from exactsink.toolkit.storage import create_file
from exactsink_idempotent_upsert.database import MARKER_TABLE, UNDECIDED, Held, Session
from exactsink_idempotent_upsert.limits import Limit, unstorable
from exactsink_idempotent_upsert.own_tables import Refusal, SqlDatabase, SqlSession, made
from exactsink_idempotent_upsert.questions import Questions
from exactsink_idempotent_upsert.sqlite.questions import SqliteQuestions
from exactsink_idempotent_upsert.sqlite.rows import Changes, HeldRows
from exactsink_idempotent_upsert.sqlite.statements import Statements, column_type
from exactsink_idempotent_upsert.sqlite.trial import Catalog, Trial
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["SqliteDatabase"]

_KINDS = {"text": "TEXT", "number": "BIGINT", "moment": "REAL"}
_GUARD = ", ".join(GUARD)

_PASSING = re.compile("database( table)? is locked|database or disk is full|unable to open database|disk I/O error")
"""SQLite's messages after which the same statement may succeed later. Python has its codes only from 3.11 on."""

_CACHE_KIB = 64 * 1024


@dataclass(frozen=True, slots=True)
class SqliteDatabase(SqlDatabase):
    """One table of a SQLite file, and how to reach it. Every call opens and closes a connection of its own."""

    path: Path
    table: Table
    busy_timeout_seconds: float

    @property
    def place(self) -> str:  # type: ignore[override]
        return str(self.path)

    def connect(self) -> sqlite3.Connection:
        """Open the file with autocommit, and never create it. A URI makes odd characters in its path harmless.

        Readers use mode rw as well, because mode ro can't recover the data of a killed writer.
        """
        uri = f"{self.path.as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, timeout=self.busy_timeout_seconds, isolation_level=None)

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        """Hold the file's write lock on a connection of its own; commit durably at the end, or roll back."""
        if make and self.table.create and not self.path.exists():
            create_file(self.path, b"")  # SQLite would give it to its process's user, not to the folder's owner
        with closing(self.connect()) as connection, _durably(connection):
            yield _Session(connection, self.table, self.place)

    def refusal(self, error: Exception) -> Refusal | None:
        if not isinstance(error, sqlite3.Error):
            return None
        said = str(error)
        if _PASSING.match(said):
            look = f"check that {self.path} exists, its disk has space, and no program keeps a transaction open"
            return Refusal(True, said, look)
        fix = f"fix table {self.table.name} in {self.path}, or the file itself"
        if f"no such table: {MARKER_TABLE}" in said:
            fix = f"restore the database that the epoch was opened on, or run: {made(MARKER_TABLE, _KINDS)};"
        elif said == "integer overflow" and self.table.expressions:
            names = ", ".join(dict(self.table.expressions))
            fix = f"change `set` of {names}, because a sum exceeds 64 bits there"
        return Refusal(False, said, fix)

    def hold(self, txn: Txn, schema: pa.Schema, form: Sequence[str]) -> Held:
        if not self.path.exists():
            what = f"{self.path} does not exist on this executor"
            raise Fatal(what, why="the driver opened it", next="put it where every executor can write to it")
        return _TemporaryTable(self)

    @contextmanager
    def looking(self) -> Iterator[_Session]:
        """Read without a lock; without a file, read an empty database. Never creates the file."""
        with closing(self.connect() if self.path.exists() else sqlite3.connect(":memory:")) as connection:
            yield _Session(connection, self.table, self.place)

    def questions(self) -> AbstractContextManager[Questions]:
        return closing(SqliteQuestions(self.path, self.table, self.connect))

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        return unstorable(batch, "SQLite", column_type)

    def limits(self, schema: pa.Schema) -> dict[str, Limit]:
        with closing(self.connect()) as connection:
            return Catalog(connection, self.table).limits(schema)

    def form(self, schema: pa.Schema) -> tuple[str, ...]:
        with closing(self.connect()) as connection:  # of a guarded table, tasks meet the table itself
            return () if self.table.guarded else Catalog(connection, self.table).tried(schema)

    def trial(self, form: Sequence[str], names: Sequence[str]) -> Trial:
        return Trial(self.table, form, names)


class _Session(SqlSession):
    """A connection that holds the file's write lock. Only calls that change nothing work without it."""

    kinds = _KINDS
    absent = "INSERT OR IGNORE INTO {}"

    def __init__(self, connection: sqlite3.Connection, table: Table, place: str) -> None:
        self._connection = connection
        self._table = table
        self._place = place

    def run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement.replace("%s", "?"), values)

    def has(self, name: str) -> bool:
        there = self._connection.execute("SELECT 1 FROM main.sqlite_master WHERE name = ?", (name,))
        return there.fetchone() is not None

    def make_tables(self, schema: pa.Schema) -> None:
        self.make_marker_table()
        statements = Statements(self._table)
        if self._table.create:
            self._connection.execute(statements.created_for(schema))
        if self._table.add_columns:
            there = Catalog(self._connection, self._table).columns
            for name in self._table.stored(schema.names):
                kind = column_type(schema.field(name).type)  # None: the columns are refused, once the table is there
                if there and ascii_lower(name) not in there and kind is not None:
                    self._connection.execute(statements.with_column(name, kind))

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        coming = iter(batches)
        if (first := next(coming, None)) is not None:
            Changes(self._connection, self._table, self._place, first.schema.names).apply(chain([first], coming))

    def write(self, held: Held, epoch: int, generation: int) -> tuple[int, int] | None:
        assert isinstance(held, _TemporaryTable)
        names, rows = [*held.names, *GUARD], held.select(f", {epoch}, {generation}")
        changes = Changes(self._connection, self._table, self._place, names, UNDECIDED)
        written = self._connection.execute(changes.statements.upsert(names, rows)).rowcount
        if written == held.total:
            return None
        newer = f"SELECT {_GUARD} FROM main.{quoted(self._table.name)} WHERE ({_GUARD}) > ({epoch}, {generation})"
        found: tuple[int, int] | None = self._connection.execute(newer).fetchone()
        if found is None:
            changes.check_kept(written, held.total, lambda: self._connection.execute(rows))
        return found


class _TemporaryTable(HeldRows, Held):
    """Rows in a temporary table, so that one statement moves them; the file is not locked meanwhile."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database.connect(), database.table)
        self._place = database.place

    def add(self, batch: pa.RecordBatch) -> None:
        self._connection.execute("BEGIN")  # of the temporary table only
        super().add(batch)
        self._connection.execute("COMMIT")

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with _durably(self._connection):
            yield _Session(self._connection, self._table, self._place)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _durably(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the file's write lock; commit durably at the end, or roll back."""
    with suppress(sqlite3.OperationalError):  # in use now, which is correct without WAL, only slower
        connection.execute("PRAGMA journal_mode = WAL")
    # A commit outlives a power cut: NORMAL may lose the last ones in WAL mode. EXTRA is FULL there, and without
    # WAL it syncs the folder as well. On macOS only a full sync reaches the disk.
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = ON")
    # Of SQLite's own 2 MB, pages of rows that lie apart are written and read again several times in a transaction.
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        connection.rollback()  # does nothing after the commit; without it a close may keep the lock for a while
