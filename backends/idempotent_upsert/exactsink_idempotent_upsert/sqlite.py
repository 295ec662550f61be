"""Apply an epoch to a SQLite file: rows and marker in one durable transaction. Driver only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from exactsink.errors import ExactsinkError, Fatal, Retryable
from exactsink.model import Finding
from exactsink.staged import Applier, Marker
from exactsink_idempotent_upsert.preflight import findings
from exactsink_idempotent_upsert.tables import MARKER_TABLE, create_marker_table, create_table, upsert
from exactsink_idempotent_upsert.values import sort_values, stored_values

if TYPE_CHECKING:
    from exactsink_idempotent_upsert.backend import UpsertOptions

__all__ = ["SqliteApplier", "absolute_url", "database_path"]

_PASSING = (
    "database is locked",
    "database table is locked",
    "database schema is locked",
    "database or disk is full",
    "unable to open database",
    "disk I/O error",
    "locking protocol",
)
"""What SQLite says when the same statement may go through later; its codes are in Python from 3.11 on only."""

_STORE_MARKER = (
    f"INSERT INTO main.{MARKER_TABLE} (job, sink, lineage, epoch, generation) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (job, sink) DO UPDATE"
    " SET lineage = excluded.lineage, epoch = excluded.epoch, generation = excluded.generation"
)


def absolute_url(text: str) -> str:
    """Check a SQLAlchemy URL and make its path absolute. Raises ValueError, which never repeats the URL."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError("not a SQLAlchemy URL: write sqlite:///path/to/file.db") from None
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise ValueError(f"{url.drivername} is not supported: SQLite is, so far (sqlite:///path/to/file.db)")
    if url.host or url.username or url.password or url.query:
        raise ValueError("a SQLite URL holds a path only: sqlite:///path/to/file.db (four slashes: an absolute path)")
    if not url.database or url.database.startswith((":memory:", "file:")):
        raise ValueError("a database in memory ends with its process: name a file, sqlite:///path/to/file.db")
    place = url.set(drivername="sqlite", database=str(Path(url.database).absolute()))
    return place.render_as_string(hide_password=False)


def database_path(text: str) -> Path:
    """Give the file that a URL of `absolute_url` names."""
    return Path(str(make_url(text).database))


class SqliteApplier(Applier):
    """Apply epochs to one table of a SQLite file. Every call opens and closes its own connection."""

    def __init__(self, options: UpsertOptions) -> None:
        self._options = options
        self._path = database_path(options.url.get_secret_value())

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        with self._explained("look at the table"):
            return list(findings(self._options, schema, self._path, self._reader))

    def open_epoch(self, schema: pa.Schema) -> None:
        """Make the marker table, and with `create` the table. Idempotent, also from two processes; durable."""
        options = self._options
        wanted = {MARKER_TABLE: create_marker_table()}
        if options.create:
            wanted[options.table] = create_table(options.table, options.keys, schema)
        with self._explained("make the tables"):
            if self._path.exists():
                with self._reader() as connection:
                    wanted = {name: sql for name, sql in wanted.items() if not _exists(connection, name)}
            if wanted:
                with self._transaction("rwc" if options.create else "rw") as connection:
                    for statement in wanted.values():
                        connection.execute(statement)

    def last_applied(self, job: str, sink: str) -> Marker | None:
        if not self._path.exists():
            return None
        with self._explained("read the marker"), self._reader() as connection:
            return _stored(connection, job, sink) if _exists(connection, MARKER_TABLE) else None

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        table = self._options.table
        doing = f"apply epoch {marker.epoch} to table {table}"
        with self._explained(doing, decided=True), self._transaction("rw") as connection:
            # Read here, under the write lock: what was read before it may be another process's past.
            if not marker.must_apply(_stored(connection, marker.job, marker.sink)):
                return False
            if self._options.order_by is None:
                self._upsert_as_they_come(connection, batches)
            else:
                self._upsert_in_order(connection, batches, self._options.order_by)
            row = (marker.job, marker.sink, marker.lineage, marker.epoch, marker.generation)
            connection.execute(_STORE_MARKER, row)
        return True

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""

    def _upsert_as_they_come(self, connection: sqlite3.Connection, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            names = batch.schema.names
            rows = zip(*map(stored_values, batch.columns), strict=True)
            done = connection.executemany(upsert(self._options.table, self._options.keys, names), rows)
            self._count(done.rowcount, batch.num_rows, names)

    def _upsert_in_order(
        self, connection: sqlite3.Connection, batches: Iterator[pa.RecordBatch], order_by: str
    ) -> None:
        """Upsert the whole epoch from the least to the greatest: the last one wins, by the table's own key equality.

        The temporary table has no declared types, so it keeps values as they are, and ends with the connection.
        """
        names: list[str] = []
        total = 0
        for batch in batches:
            if not names:
                names = batch.schema.names
                held = ", ".join(f"c{i}" for i in range(len(names)))
                connection.execute(f"CREATE TEMP TABLE exactsink_epoch (position INTEGER PRIMARY KEY, {held}, rank)")
                insert = f"INSERT INTO temp.exactsink_epoch VALUES (NULL, {'?, ' * len(names)}?)"
            columns = [stored_values(batch.column(name)) for name in names]
            rows = zip(*columns, sort_values(batch.column(order_by)), strict=True)
            connection.executemany(insert, rows)
            total += batch.num_rows
        if names:
            select = f"SELECT {held} FROM temp.exactsink_epoch WHERE true ORDER BY rank, position"
            done = connection.execute(upsert(self._options.table, self._options.keys, names, select))
            self._count(done.rowcount, total, names)

    def _count(self, done: int, given: int, names: list[str]) -> None:
        """Refuse a table that drops rows on its own (ON CONFLICT IGNORE, a trigger). Rows of keys only are no news."""
        if done != given and set(names) != set(self._options.keys):
            raise Fatal(
                f"table {self._options.table} dropped {given - done} rows of a decided epoch, so none was kept",
                why="a trigger with RAISE(IGNORE), or a constraint with ON CONFLICT IGNORE, drops rows silently;"
                " the epoch is decided and its rows are staged: nothing is lost",
                next=f"take it off the table in {self._path}, then start the job again",
            )

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Open the existing file to read. Not with mode=ro, which can't read what a killed writer left to recover."""
        with closing(self._connect("rw")) as connection:
            connection.execute("PRAGMA query_only = ON")
            yield connection

    @contextmanager
    def _transaction(self, mode: str) -> Iterator[sqlite3.Connection]:
        """Hold the file's write lock; commit durably at the end, or roll back."""
        with closing(self._connect(mode)) as connection:
            with suppress(sqlite3.OperationalError):  # in use just now: right without WAL too, only slower
                connection.execute("PRAGMA journal_mode = WAL")
            # The marker outlives a power cut: NORMAL may lose the last commits in WAL mode. EXTRA is FULL there, and
            # where WAL is not to be had it syncs the folder as well.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _connect(self, mode: str) -> sqlite3.Connection:
        """Open the file with autocommit. Mode rw never creates it; its place in a URI keeps odd characters harmless."""
        timeout = self._options.busy_timeout_seconds
        return sqlite3.connect(f"{self._path.as_uri()}?mode={mode}", uri=True, timeout=timeout, isolation_level=None)

    @contextmanager
    def _explained(self, doing: str, decided: bool = False) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except ExactsinkError:
            raise
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            raise self._explain(error, doing, decided) from error

    def _explain(self, error: Exception, doing: str, decided: bool) -> ExactsinkError:
        what = f"could not {doing} in {self._path}: {error}"
        safe = "the epoch is decided and its rows are staged, so nothing is lost" if decided else ""
        if isinstance(error, sqlite3.OperationalError) and str(error).startswith(_PASSING):
            look = f"see that {self._path} exists, its disk has room, and no one holds a long transaction on it"
            return Retryable(what, why=safe or "the database may answer later", next=look)
        if f"no such table: main.{MARKER_TABLE}" in str(error):
            mend = f"bring back the database that the epoch was opened on, or run: {create_marker_table()};"
            return Fatal(what, why=f"the marker's table is gone; {safe}", next=mend)
        mend = f"mend table {self._options.table} in {self._path} (or the file), then start the job again"
        return Fatal(what, why=safe or "SQLite refuses", next=mend)


def _exists(connection: sqlite3.Connection, table: str) -> bool:
    found = connection.execute("SELECT 1 FROM pragma_table_xinfo(?) LIMIT 1", (table,))
    return found.fetchone() is not None


def _stored(connection: sqlite3.Connection, job: str, sink: str) -> Marker | None:
    columns = "lineage, epoch, generation"
    query = f"SELECT {columns} FROM main.{MARKER_TABLE} WHERE job = ? AND sink = ?"
    row = connection.execute(query, (job, sink)).fetchone()
    return None if row is None else Marker(job, sink, *row)
