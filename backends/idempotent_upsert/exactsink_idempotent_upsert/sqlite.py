"""Apply an epoch to a SQLite file: rows and marker in one durable transaction. Driver only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from exactsink.errors import Fatal, Retryable
from exactsink.model import Finding
from exactsink.staged import Applier, Marker
from exactsink_idempotent_upsert.tables import Table, create_table, findings, sort_values, stored_values

__all__ = ["MARKER_TABLE", "SqliteApplier"]

MARKER_TABLE = "exactsink_epochs"
"""It holds the last applied epoch of every (job, sink)."""

_MARKER_COLUMNS = {"job": "TEXT", "sink": "TEXT", "lineage": "TEXT", "epoch": "BIGINT", "generation": "BIGINT"}
_STORE_MARKER = f"INSERT OR REPLACE INTO main.{MARKER_TABLE} ({', '.join(_MARKER_COLUMNS)}) VALUES (?, ?, ?, ?, ?)"
_READ_MARKER = f"SELECT lineage, epoch, generation FROM main.{MARKER_TABLE} WHERE job = ? AND sink = ?"

_PASSING = (
    "database is locked",
    "database table is locked",
    "database or disk is full",
    "unable to open database",
    "disk I/O error",
)
"""What SQLite says when the same statement may go through later; its codes are in Python from 3.11 on only."""


class SqliteApplier(Applier):
    """Apply epochs to one table of a SQLite file. Every call opens and closes its own connection."""

    def __init__(self, path: Path, table: Table, busy_timeout_seconds: float) -> None:
        self._path = path
        self._table = table
        self._timeout = busy_timeout_seconds

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        with self._explained("look at the table"):
            return list(findings(self._table, schema, self._path, self._connect))

    def open_epoch(self, schema: pa.Schema) -> None:
        """Make the marker table, and with `create` the table. Idempotent, also from two processes; durable."""
        create = self._table.create
        with self._explained("make the tables"), self._transaction("rwc" if create else "rw") as connection:
            connection.execute(_create_marker_table())
            if create:
                connection.execute(self._table.created_for(schema))

    def last_applied(self, job: str, sink: str) -> Marker | None:
        with self._explained("read the marker"), closing(self._connect()) as connection:
            return _stored(connection, job, sink)

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        doing = f"apply epoch {marker.epoch} to table {self._table.name}"
        with self._explained(doing, decided=True), self._transaction("rw") as connection:
            # Read here, under the write lock: what was read before it may be another process's past.
            if not marker.must_apply(_stored(connection, marker.job, marker.sink)):
                return False
            if self._table.order_by is None:
                self._upsert_as_they_come(connection, batches)
            else:
                self._upsert_in_order(connection, batches, self._table.order_by)
            row = (marker.job, marker.sink, marker.lineage, marker.epoch, marker.generation)
            connection.execute(_STORE_MARKER, row)
        return True

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""

    def _upsert_as_they_come(self, connection: sqlite3.Connection, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            names = batch.schema.names
            rows = zip(*map(stored_values, batch.columns), strict=True)
            done = connection.executemany(self._table.upsert(names), rows)
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
            columns = [stored_values(batch.column(name)) for name in names]
            rows = zip(*columns, sort_values(batch.column(order_by)), strict=True)
            connection.executemany(f"INSERT INTO temp.exactsink_epoch VALUES (NULL, {'?, ' * len(names)}?)", rows)
            total += batch.num_rows
        if names:
            select = f"SELECT {held} FROM temp.exactsink_epoch WHERE true ORDER BY rank, position"
            done = connection.execute(self._table.upsert(names, select))
            self._count(done.rowcount, total, names)

    def _count(self, done: int, given: int, names: list[str]) -> None:
        """Refuse a table that drops rows on its own (ON CONFLICT IGNORE, a trigger). Rows of keys only are no news."""
        if done != given and set(names) != set(self._table.keys):
            raise Fatal(
                f"table {self._table.name} dropped {given - done} rows of a decided epoch, so none was kept",
                why="a trigger with RAISE(IGNORE), or a constraint with ON CONFLICT IGNORE, drops rows silently;"
                " the epoch is decided and its rows are staged: nothing is lost",
                next=f"take it off the table in {self._path}, then start the job again",
            )

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
            finally:
                connection.rollback()  # does nothing after the commit; closing alone may leave the lock for a while

    def _connect(self, mode: str = "rw") -> sqlite3.Connection:
        """Open the file with autocommit; its place in a URI keeps odd characters harmless.

        Mode rw never creates it. Readers use it too: mode ro can't read what a killed writer left to recover.
        """
        uri = f"{self._path.as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=self._timeout, isolation_level=None)

    @contextmanager
    def _explained(self, doing: str, decided: bool = False) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            what = f"could not {doing} in {self._path}: {error}"
            safe = "the epoch is decided and its rows are staged, so nothing is lost" if decided else ""
            if str(error).startswith(_PASSING):
                look = f"see that {self._path} exists, its disk has room, and no one holds a long transaction on it"
                raise Retryable(what, why=safe or "the database may answer later", next=look) from error
            mend = f"mend table {self._table.name} in {self._path} (or the file), then start the job again"
            if f"no such table: main.{MARKER_TABLE}" in str(error):
                mend = f"bring back the database that the epoch was opened on, or run: {_create_marker_table()};"
            raise Fatal(what, why=safe or "SQLite refuses", next=mend) from error


def _create_marker_table() -> str:
    return create_table(MARKER_TABLE, _MARKER_COLUMNS, ("job", "sink"))


def _stored(connection: sqlite3.Connection, job: str, sink: str) -> Marker | None:
    row = connection.execute(_READ_MARKER, (job, sink)).fetchone()
    return None if row is None else Marker(job, sink, *row)
