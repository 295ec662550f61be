"""A SQLite file: its connections and durable transactions, and the marker and owner tables in it.

Executors import this module for the direct strategy: SQLAlchemy only where the driver calls.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Fatal, Finding, InDoubt, Retryable
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.sql import counted_by, quoted
from exactsink.toolkit.storage import create_file
from exactsink_idempotent_upsert.database import (
    MARKER_TABLE,
    OWNER_TABLE,
    UNDECIDED,
    VOTE_TABLE,
    Database,
    Held,
    Owner,
    Session,
    Votes,
)
from exactsink_idempotent_upsert.limits import Limit, Trial
from exactsink_idempotent_upsert.names import ascii_lower
from exactsink_idempotent_upsert.sqlite import trial
from exactsink_idempotent_upsert.sqlite.rows import Changes, HeldRows
from exactsink_idempotent_upsert.sqlite.statements import Statements, create_table
from exactsink_idempotent_upsert.sqlite.values import column_type, unstorable
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["SqliteDatabase"]

_TOKEN = "token"  # a table of the first releases has it not
_MARKER_COLUMNS = {"job": "TEXT", "sink": "TEXT", "lineage": "TEXT", "epoch": "BIGINT", "generation": "BIGINT"} | {
    _TOKEN: "TEXT"
}
_VOTE_COLUMNS = {"participant": "TEXT", "voted_at": "REAL"}
_STORE_MARKER = f"INSERT OR REPLACE INTO main.{MARKER_TABLE} ({', '.join(_MARKER_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?)"
_READ_MARKER = f"SELECT * FROM main.{MARKER_TABLE} WHERE job = ? AND sink = ?"
_NAMES = "SELECT name FROM pragma_table_xinfo(?)"
_READ_OWNER = f"SELECT job, sink, lineage FROM main.{OWNER_TABLE} WHERE target = ?"

_PASSING = (
    "database is locked",
    "database table is locked",
    "database or disk is full",
    "unable to open database",
    "disk I/O error",
)
"""What SQLite says when the same statement may go through later; its codes are in Python from 3.11 on only."""

_CACHE_KIB = 64 * 1024


@dataclass(frozen=True, slots=True)
class SqliteDatabase(Database):
    """One table of a SQLite file, and how to reach it. Every call opens and closes a connection of its own."""

    path: Path
    table: Table
    busy_timeout_seconds: float

    @property
    def place(self) -> str:
        return str(self.path)

    def connect(self, mode: str = "rw") -> sqlite3.Connection:
        """Open the file with autocommit; its place in a URI keeps odd characters harmless.

        Mode rw never creates it. Readers use it too: mode ro can't read what a killed writer left to recover.
        """
        uri = f"{self.path.as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=self.busy_timeout_seconds, isolation_level=None)

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        """Hold the file's write lock on a connection of its own; commit durably at the end, or roll back."""
        if make and self.table.create and not self.path.exists():
            create_file(self.path, b"")  # SQLite would make one that is its process's user's, whoever has the folder
        with closing(self.connect()) as connection, _durably(connection):
            yield _Session(connection, self.table, self.place)

    @contextmanager
    def explained(self, doing: str, safe: str = "") -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            what = f"could not {doing} in {self.path}: {error}"
            if str(error).startswith(_PASSING):
                look = f"see that {self.path} exists, its disk has room, and no one holds a long transaction on it"
                raise Retryable(what, why=safe or "the database may answer later", next=look) from error
            fix = f"fix table {self.table.name} in {self.path} (or the file), then start the job again"
            if f"no such table: main.{MARKER_TABLE}" in str(error):
                fix = f"bring back the database that the epoch was opened on, or run: {_marker_table()};"
            raise Fatal(what, why=safe or "SQLite refuses", next=fix) from error

    def hold(self) -> Held:
        if not self.path.exists():
            what = f"{self.path} is not there on this executor"
            raise Fatal(what, why="the driver opened it", next="put it where every executor can write to it")
        return _TemporaryTable(self)

    def last_marker(self, job: str, sink: str) -> Marker | None:
        """Read the marker; None also where there is no file. Changes nothing."""
        if not self.path.exists():
            return None
        with closing(self.connect()) as connection:
            there = _has_table(connection, MARKER_TABLE)
            return _Session(connection, self.table, self.place).marker(job, sink) if there else None

    def last_owner(self) -> Owner | None:
        """Read who owns the table. Changes nothing, and never creates the file."""
        if not self.path.exists():
            return None
        with closing(self.connect()) as connection:
            there = _has_table(connection, OWNER_TABLE)
            return _Session(connection, self.table, self.place).owner() if there else None

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        if not self.path.exists():
            return []
        with closing(self.connect()) as connection:
            return _Session(connection, self.table, self.place).listed(job, sink)

    def by_epoch(self, column: str, first: int) -> Mapping[int | None, int]:
        with closing(self.connect()) as connection:
            query = counted_by(quoted(column), quoted("main", self.table.name), first)
            return dict(connection.execute(query).fetchall())

    def findings(self, schema: pa.Schema | None) -> Iterator[Finding]:
        from exactsink_idempotent_upsert.sqlite.preflight import file_findings

        return file_findings(self.path, self.table, schema, self.connect)

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        return unstorable(batch)

    def limits(self, schema: pa.Schema) -> dict[str, Limit]:
        with closing(self.connect()) as connection:
            return trial.limits_of(connection, self.table, schema)

    def form(self, schema: pa.Schema) -> tuple[str, ...]:
        if self.table.guarded:  # its tasks meet the table itself
            return ()
        with closing(self.connect()) as connection:
            return trial.form_of(connection, self.table, schema)

    def trial(self, form: Sequence[str], names: Sequence[str]) -> Trial:
        return trial.Trial(self.table, form, names)


class _Session(Session):
    """A connection that holds the file's write lock; only what changes nothing is called without it."""

    def __init__(self, connection: sqlite3.Connection, table: Table, place: str) -> None:
        self._connection = connection
        self._table = table
        self._place = place

    def make_marker_table(self) -> None:
        self._connection.execute(_marker_table())

    def make_tables(self, schema: pa.Schema) -> None:
        self.make_marker_table()
        statements = Statements(self._table)
        if self._table.create:
            self._connection.execute(statements.created_for(schema))
        if self._table.add_columns:
            there = {ascii_lower(name) for (name,) in self._connection.execute(_NAMES, (self._table.name,))}
            for name in self._table.stored(schema.names):
                kind = column_type(schema.field(name).type)  # None: the columns are refused, once the table is there
                if there and ascii_lower(name) not in there and kind is not None:
                    self._connection.execute(statements.with_column(name, kind))

    def marker(self, job: str, sink: str) -> Marker | None:
        found = self._connection.execute(_READ_MARKER, (job, sink))
        row = found.fetchone()
        if row is None:
            return None
        stored = dict(zip((column[0] for column in found.description), row, strict=True))
        return Marker(job, sink, stored["lineage"], stored["epoch"], stored["generation"], stored.get(_TOKEN) or "")

    def store(self, marker: Marker) -> None:
        columns = self._connection.execute(f"PRAGMA main.table_info({MARKER_TABLE})").fetchall()
        if _TOKEN not in [name for _, name, *_ in columns]:
            self._connection.execute(f"ALTER TABLE main.{MARKER_TABLE} ADD COLUMN {_TOKEN} TEXT")
        row = (marker.job, marker.sink, marker.lineage, marker.epoch, marker.generation, marker.token)
        self._connection.execute(_STORE_MARKER, row)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        coming = iter(batches)
        if (first := next(coming, None)) is not None:
            Changes(self._connection, self._table, self._place, first.schema.names).apply(chain([first], coming))

    def write(self, held: Held, epoch: int, generation: int) -> tuple[int, int] | None:
        assert isinstance(held, _TemporaryTable)
        names, rows = held.read(f", {epoch}, {generation}")
        changes = Changes(self._connection, self._table, self._place, [*names, *GUARD], UNDECIDED)
        statement = changes.statements.upsert([*names, *GUARD], rows)
        written = self._connection.execute(statement).rowcount
        if written == held.total:
            return None
        newer = changes.statements.newer_than(epoch, generation)
        found: tuple[int, int] | None = self._connection.execute(newer).fetchone()
        if found is None:
            changes.check_kept(written, held.total, lambda: self._connection.execute(rows))
        return found

    def owner(self) -> Owner | None:
        owner: Owner | None = self._connection.execute(_READ_OWNER, (self._table.target,)).fetchone()
        return owner

    @property
    def votes(self) -> Votes:
        return Votes(lambda sql, *values: self._connection.execute(sql.replace("%s", "?"), values).fetchall())

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        return list(self.votes.of(job, sink)) if _has_table(self._connection, VOTE_TABLE) else []

    def take(self, mine: Owner, succeeds: frozenset[str] = frozenset()) -> Owner:
        target = self._table.target
        owners = create_table(OWNER_TABLE, dict.fromkeys(("target", "job", "sink", "lineage"), "TEXT"), ("target",))
        self._connection.execute(owners)
        self._connection.execute(create_table(VOTE_TABLE, _VOTE_COLUMNS, ("participant",)))
        self._connection.execute(f"INSERT OR IGNORE INTO main.{OWNER_TABLE} VALUES (?, ?, ?, ?)", (target, *mine))
        owner = self.owner()
        if owner is not None and owner[:2] == mine[:2] and owner[2] in succeeds:
            self._connection.execute(f"UPDATE main.{OWNER_TABLE} SET lineage = ? WHERE target = ?", (mine[2], target))
            return mine
        return owner or mine


class _TemporaryTable(Held):
    """Rows in a temporary table, so that one statement moves them; the file is not locked meanwhile."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._connection = database.connect()
        self._rows = HeldRows(self._connection, database.table)

    def add(self, batch: pa.RecordBatch) -> None:
        self._connection.execute("BEGIN")  # of the temporary table only
        self._rows.add(batch)
        self._connection.execute("COMMIT")
        self.total = self._rows.total

    def read(self, more: str) -> tuple[list[str], str]:
        """Return the columns' names, and the SELECT that reads the rows with `more` values each."""
        return self._rows.names, self._rows.select(more)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with _durably(self._connection):
            yield _Session(self._connection, self._database.table, self._database.place)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _durably(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the file's write lock; commit durably at the end, or roll back."""
    with suppress(sqlite3.OperationalError):  # in use just now: right without WAL too, only slower
        connection.execute("PRAGMA journal_mode = WAL")
    # A commit outlives a power cut: NORMAL may lose the last ones in WAL mode. EXTRA is FULL there, and where WAL is
    # not to be had it syncs the folder as well.
    connection.execute("PRAGMA synchronous = EXTRA")
    # Of SQLite's own 2 MB, pages of rows that lie apart are written and read again several times in a transaction.
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        connection.rollback()  # does nothing after the commit; closing alone may leave the lock for a while


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM main.sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def _marker_table() -> str:
    return create_table(MARKER_TABLE, _MARKER_COLUMNS, ("job", "sink"))
