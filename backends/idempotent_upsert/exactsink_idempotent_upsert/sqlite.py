"""A SQLite file: its connections and durable transactions, the marker and owner tables, and what keeps rows out of it.

Executors import this module for the direct strategy: SQLAlchemy only where the driver calls.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Fatal, Finding, Marker, Retryable
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.tables import GUARD, Table, column_type, create_table

__all__ = ["MARKER_TABLE", "Database", "durably", "findings", "read_marker", "store_marker"]

MARKER_TABLE = "exactsink_epochs"
"""It holds the last applied epoch of every (job, sink)."""

_TOKEN = "token"  # a table of the first releases has it not
_MARKER_COLUMNS = {"job": "TEXT", "sink": "TEXT", "lineage": "TEXT", "epoch": "BIGINT", "generation": "BIGINT"} | {
    _TOKEN: "TEXT"
}
_STORE_MARKER = f"INSERT OR REPLACE INTO main.{MARKER_TABLE} ({', '.join(_MARKER_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?)"
_READ_MARKER = f"SELECT * FROM main.{MARKER_TABLE} WHERE job = ? AND sink = ?"

Owner = tuple[str, str, str]
"""The job, sink and lineage that alone write a table directly."""

_OWNER_TABLE = "exactsink_owners"
_READ_OWNER = f"SELECT job, sink, lineage FROM main.{_OWNER_TABLE} WHERE target = ?"

_PASSING = (
    "database is locked",
    "database table is locked",
    "database or disk is full",
    "unable to open database",
    "disk I/O error",
)
"""What SQLite says when the same statement may go through later; its codes are in Python from 3.11 on only."""

_CACHE_KIB = 64 * 1024
_TEXT_DIGITS = 15  # SQLite keeps that many of a decimal text that it puts into a column of numbers

# Name, declared type, and whether a row must bring a value; SQLite gives one itself to an INTEGER primary key.
_COLUMNS = """
    SELECT name, type, "notnull" AND dflt_value IS NULL AND NOT hidden AND NOT (pk AND upper(type) = 'INTEGER')
    FROM pragma_table_xinfo(?) ORDER BY cid
"""


@dataclass(frozen=True, slots=True)
class Database:
    """One table of a SQLite file, and how to reach it. Holds no connection."""

    path: Path
    table: Table
    busy_timeout_seconds: float

    def connect(self, mode: str = "rw") -> sqlite3.Connection:
        """Open the file with autocommit; its place in a URI keeps odd characters harmless.

        Mode rw never creates it. Readers use it too: mode ro can't read what a killed writer left to recover.
        """
        uri = f"{self.path.as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=self.busy_timeout_seconds, isolation_level=None)

    @contextmanager
    def transaction(self, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        """Hold the file's write lock on a connection of its own; commit durably at the end, or roll back."""
        with closing(self.connect(mode)) as connection, durably(connection):
            yield connection

    @contextmanager
    def explained(self, doing: str, safe: str = "") -> Iterator[None]:
        """Turn SQLite's errors into ours; `safe` says why nothing is lost by them."""
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

    @property
    def mode(self) -> str:
        """The mode that opens the file for a first epoch: only `create` makes it."""
        return "rwc" if self.table.create else "rw"

    def make_tables(self, connection: sqlite3.Connection, schema: pa.Schema) -> None:
        """Make the marker table, and with `create` the table. Idempotent."""
        connection.execute(_marker_table())
        if self.table.create:
            connection.execute(self.table.created_for(schema))

    def marker(self, job: str, sink: str) -> Marker | None:
        """Read the marker of (job, sink); None also where there is no table, or no file, for it. Changes nothing."""
        if not self.path.exists():
            return None
        with closing(self.connect()) as connection:
            return read_marker(connection, job, sink) if _has_table(connection, MARKER_TABLE) else None

    def put_birth(self, birth: Marker) -> Marker:
        """Store a birth unless (job, sink) has a marker, in one transaction; return the one that stands."""
        with self.transaction(self.mode) as connection:
            connection.execute(_marker_table())
            stored = read_marker(connection, birth.job, birth.sink)
            if stored is None:
                store_marker(connection, birth)
        return stored or birth

    def take(self, connection: sqlite3.Connection, mine: Owner, succeeds: frozenset[str] = frozenset()) -> Owner:
        """Take the table for direct writes, in the caller's transaction, and return the owner.

        That is another one where it has one, but for the journals that this one goes on from.
        """
        connection.execute(
            create_table(_OWNER_TABLE, dict.fromkeys(("target", "job", "sink", "lineage"), "TEXT"), ("target",))
        )
        connection.execute(f"INSERT OR IGNORE INTO main.{_OWNER_TABLE} VALUES (?, ?, ?, ?)", (self._target, *mine))
        owner = self.owner_in(connection)
        if owner is not None and owner[:2] == mine[:2] and owner[2] in succeeds:
            connection.execute(f"UPDATE main.{_OWNER_TABLE} SET lineage = ? WHERE target = ?", (mine[2], self._target))
            return mine
        return owner or mine

    def owner_in(self, connection: sqlite3.Connection) -> Owner | None:
        """Read who owns the table, from a file that has the owners' table."""
        owner: Owner | None = connection.execute(_READ_OWNER, (self._target,)).fetchone()
        return owner

    def owner(self) -> Owner | None:
        """Read who owns the table. Changes nothing, and never creates the file."""
        if not self.path.exists():
            return None
        with closing(self.connect()) as connection:
            return self.owner_in(connection) if _has_table(connection, _OWNER_TABLE) else None

    def owned_by(self, owner: Owner) -> tuple[str, str]:
        """Return a message that names the table's owner, and how the table is set free."""
        job, sink, lineage = owner
        free = (
            f"DELETE FROM {_OWNER_TABLE} WHERE target = '{self._target.replace(chr(39), 2 * chr(39))}';"
            f" UPDATE {quoted(self.table.name)} SET {', '.join(f'{name} = NULL' for name in GUARD)};"
        )
        what = (
            f"table {self.table.name} belongs to sink {sink} of job {job} (lineage {lineage}), which writes it directly"
        )
        return what, f"name another table; or, once that job has ended for good, run: {free}"

    @property
    def _target(self) -> str:
        return self.table.name.lower()


@contextmanager
def durably(connection: sqlite3.Connection) -> Iterator[None]:
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


def read_marker(connection: sqlite3.Connection, job: str, sink: str) -> Marker | None:
    """Read the marker of (job, sink); None when none of its epochs was applied."""
    found = connection.execute(_READ_MARKER, (job, sink))
    row = found.fetchone()
    if row is None:
        return None
    stored = dict(zip((column[0] for column in found.description), row, strict=True))
    return Marker(job, sink, stored["lineage"], stored["epoch"], stored["generation"], stored.get(_TOKEN) or "")


def store_marker(connection: sqlite3.Connection, marker: Marker) -> None:
    """Replace the marker of (job, sink), in the caller's transaction."""
    columns = connection.execute(f"PRAGMA main.table_info({MARKER_TABLE})").fetchall()
    if _TOKEN not in [name for _, name, *_ in columns]:
        connection.execute(f"ALTER TABLE main.{MARKER_TABLE} ADD COLUMN {_TOKEN} TEXT")
    row = (marker.job, marker.sink, marker.lineage, marker.epoch, marker.generation, marker.token)
    connection.execute(_STORE_MARKER, row)


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM main.sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def _marker_table() -> str:
    return create_table(MARKER_TABLE, _MARKER_COLUMNS, ("job", "sink"))


def findings(database: Database, schema: pa.Schema) -> Iterator[Finding]:
    """Find what keeps such rows from being upserted. Changes nothing, and never creates the file."""
    table, path = database.table, database.path
    first = [*_frame_problems(table, schema), *_place_problems(path)]
    if first:
        yield from first
        return  # what follows would repeat it in other words
    columns: list[tuple[str, str, bool]] = []
    stored = pa.schema([schema.field(name) for name in table.stored(schema.names)])
    if path.exists():
        with closing(database.connect()) as connection:
            try:
                columns = connection.execute(_COLUMNS, (table.name,)).fetchall()
            except sqlite3.OperationalError:
                raise  # busy, say
            except sqlite3.DatabaseError as error:
                yield Finding("error", f"{path} is not a SQLite database: {error}", "name another file in `url`")
                return
            if columns:
                yield from _table_problems(table, stored, connection, columns)
    if not columns and not table.create:
        message = f"table {table.name} does not exist in {path}"
        yield Finding("error", message, f"set create = true, or run: {table.created_for(schema)};")


def _frame_problems(table: Table, schema: pa.Schema) -> Iterator[Finding]:
    for option, names in (("keys", table.keys), ("order_by", (table.order_by,))):
        for name in names:
            if name is not None and name not in schema.names:
                message = f"`{option}` names column {name}, the rows have {', '.join(schema.names)}"
                yield Finding("error", message, f"select {name} into this sink, or correct `{option}`")
    seen: dict[str, str] = {}
    for name in (*schema.names, *(GUARD if table.guarded else ())):
        if name.lower() in seen:
            message = f"columns {seen[name.lower()]} and {name} are one column to SQLite"
            yield Finding("error", message, f"rename one of them: withColumnRenamed({name!r}, ...)")
        seen[name.lower()] = name
    for field in schema:
        if column_type(field.type) is None:
            expression = f"to_json({field.name})" if pa.types.is_nested(field.type) else f"cast({field.name} AS STRING)"
            message = f"column {field.name} is of type {field.type}, which SQLite can't hold"
            yield Finding("error", message, f"convert it in the transform: {expression} AS {field.name}")


def _place_problems(path: Path) -> Iterator[Finding]:
    folder = path.parent
    if not folder.is_dir():
        yield Finding("error", f"folder {folder} of the database does not exist", f"mkdir -p {folder}")
    elif not os.access(folder, os.W_OK | os.X_OK):
        message = f"folder {folder} is not writable: SQLite needs to make files beside the database"
        yield Finding("error", message, f"chmod u+rwx {folder}, or run the driver as its owner")
    elif path.is_dir():
        yield Finding("error", f"{path} is a folder", "name a file in `url`")
    elif path.exists() and not os.access(path, os.R_OK | os.W_OK):
        yield Finding("error", f"{path} is not writable", f"chmod u+rw {path}, or run the driver as its owner")


def _table_problems(
    table: Table, schema: pa.Schema, connection: sqlite3.Connection, columns: Sequence[tuple[str, str, bool]]
) -> Iterator[Finding]:
    declared = {name.lower(): declared for name, declared, _ in columns}
    names = [*schema.names, *(GUARD if table.guarded else ())]
    given = {name.lower() for name in names}
    missing = [field for field in schema if field.name.lower() not in declared]
    for field in missing:
        statement = table.with_column(field.name, column_type(field.type))
        yield Finding("error", f"table {table.name} has no column {field.name}", statement)
    if unguarded := [name for name in names[len(schema.names) :] if name not in declared]:
        message = f"table {table.name} has no columns for whose write a row is, as strategy direct needs them"
        yield Finding("error", message, " ".join(table.with_column(name, "BIGINT") for name in unguarded))
    for name, _, required in columns:
        if required and name.lower() not in given:
            message = f"column {name} of table {table.name} is NOT NULL without a default, and the rows lack it"
            yield Finding("error", message, f"select {name} into this sink, or give it a DEFAULT in the table")
    if missing or unguarded:
        return
    try:  # SQLite itself has the last word: a conflict target, a view, a generated column
        connection.execute(f"EXPLAIN {table.upsert(names)}", [None] * len(names)).close()
    except sqlite3.OperationalError as error:
        if str(error).startswith("ON CONFLICT clause does not match"):
            message = f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(table.keys)}"
            yield Finding("error", message, table.with_unique_keys())
        else:
            message = f"table {table.name} can't be upserted into: {error}"
            yield Finding("error", message, f"name another table, or fix {table.name}")
    for field in schema:
        yield from _text_as_number(table.name, field, declared[field.name.lower()])


def _text_as_number(table: str, field: pa.Field, declared: str) -> Iterator[Finding]:
    """Warn of text that the column's affinity would turn into a number (SQLite's rules, in order)."""
    kind = declared.upper()
    keeps = not kind or ("INT" not in kind and any(part in kind for part in ("CHAR", "CLOB", "TEXT", "BLOB")))
    if keeps or column_type(field.type) != "TEXT" or pa.types.is_temporal(field.type):
        return
    found = f"column {field.name} of table {table} is declared {declared}"
    fix = f"declare {quoted(field.name)} TEXT in the table, or cast it to a number in the transform"
    if not pa.types.is_decimal(field.type):
        yield Finding("warning", f"{found}, the rows have text: SQLite would store '007' as the number 7", fix)
    elif field.type.precision > _TEXT_DIGITS:
        yield Finding("error", f"{found}: SQLite would keep {_TEXT_DIGITS} digits of {field.type}", fix)
