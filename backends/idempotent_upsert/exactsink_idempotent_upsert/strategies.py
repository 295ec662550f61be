"""The two ways of an epoch into an SQLite table.

Staged: the driver applies rows and marker in one transaction, after the decision. Direct: each task upserts its own
rows in one transaction, before the decision, and the driver stores the marker after it. Executors import this module.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Applier,
    Committable,
    Committed,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    LineageError,
    Marker,
    MarkerCommitter,
    Outcome,
    Refused,
    Txn,
    Undecided,
    Writer,
)
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.sqlite import Database, durably, findings, read_marker, store_marker
from exactsink_idempotent_upsert.tables import GUARD, HeldRows, insert, stored_values

__all__ = ["DirectCommitter", "DirectWriter", "SqliteApplier"]

_AT_ONCE = 10_000  # rows, as Spark hands them over
_STAGED = "the epoch is decided and its rows are staged, so nothing is lost"
_WRITTEN = "the epoch is decided and its rows are in the table, so nothing is lost"
_UNDECIDED = "the epoch is not decided yet, and is written again"

# By which collation each unique index meets its columns. An upsert takes the index's, which may not be the column's.
_COLLATIONS = """
    SELECT list.name, lower(part.name), part.coll
    FROM pragma_index_list(?) AS list, pragma_index_xinfo(list.name) AS part
    WHERE list."unique" AND NOT list.partial AND part.key ORDER BY list.name
"""


class SqliteApplier(Applier):
    """Apply epochs to one table of a SQLite file. Every call opens and closes its own connection."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        with self._database.explained("look at the table"):
            return list(findings(self._database, schema))

    def open_epoch(self, schema: pa.Schema) -> None:
        """Make the marker table, and with `create` the table. Idempotent, also from two processes; durable."""
        database = self._database
        with database.explained("make the tables"), database.transaction(database.mode) as connection:
            database.make_tables(connection, schema)

    def last_applied(self, job: str, sink: str) -> Marker | None:
        with self._database.explained("read the marker"):
            return self._database.marker(job, sink)

    def put_birth(self, birth: Marker) -> Marker:
        with self._database.explained("put the birth"):
            return self._database.put_birth(birth)

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        database = self._database
        doing = f"apply epoch {marker.epoch} to table {database.table.name}"
        with database.explained(doing, _STAGED), database.transaction() as connection:
            # Read here, under the write lock: what was read before it may be another process's past.
            if not marker.must_apply(read_marker(connection, marker.job, marker.sink)):
                return False
            _Changes(database, connection).apply(batches)
            store_marker(connection, marker)
        return True

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""


class _Changes:
    """One epoch's upserts and deletes, in the caller's transaction; each row's own order is kept."""

    def __init__(self, database: Database, connection: sqlite3.Connection) -> None:
        self._database = database
        self._table = database.table
        self._connection = connection

    def apply(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Apply rows as they come, or with `order_by` the whole epoch from the least to the greatest.

        Either way the last one of a key wins, by the table's own equality of keys.
        """
        if self._table.order_by is not None:
            held = HeldRows(self._connection, self._table)
            for batch in batches:
                held.add(batch)
            if held.names and self._table.deletes:
                in_order = self._connection.execute(held.select())
                while rows := in_order.fetchmany(_AT_ONCE):
                    self._in_runs(held.names, list(zip(*rows, strict=True)))
            elif held.names:
                done = self._connection.execute(self._table.upsert(held.names, held.select())).rowcount
                _check_count(self._database, done, held.total, held.names)
            return
        for batch in batches:
            names = self._table.bound(batch.schema.names)
            columns = [stored_values(batch.column(name)) for name in names]
            if self._table.deletes:
                self._in_runs(names, columns)
            else:
                self._upsert(names, columns)

    def _in_runs(self, names: Sequence[str], columns: Sequence[Sequence[Any]]) -> None:
        """Upsert and delete by turns; the last column says which."""
        stored = names[:-1]
        places = [stored.index(key) for key in self._table.keys]
        delete, first = self._deleter(), 0
        for deleted, run in groupby(columns[-1]):
            end = first + sum(1 for _ in run)
            values = [column[first:end] for column in columns[:-1]]
            if deleted:
                delete(zip(*(values[place] for place in places), strict=True))
            else:
                self._upsert(stored, values)
            first = end

    def _upsert(self, names: Sequence[str], columns: Sequence[Sequence[Any]]) -> None:
        done = insert(self._connection, lambda rows: self._table.upsert(names, rows), columns)
        _check_count(self._database, done, len(columns[0]), names)

    def _deleter(self) -> Callable[[Iterable[Sequence[Any]]], object]:
        """Return what deletes keys. Where triggers might keep a row, each is looked for afterwards."""
        table, connection = self._table, self._connection
        parts = connection.execute(_COLLATIONS, (table.name,)).fetchall()
        indexes = [{name: by for _, name, by in index} for _, index in groupby(parts, lambda part: part[0])]
        keys = {key.lower() for key in table.keys}
        collations = next((index for index in indexes if set(index) == keys), {})
        statement = table.by_key("DELETE", collations)
        look = "SELECT 1 FROM main.sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = ?"
        if connection.execute(look, (table.name.lower(),)).fetchone() is None:
            return lambda rows: connection.executemany(statement, rows)
        still = table.by_key("SELECT 1", collations)

        def delete_and_look(rows: Iterable[Sequence[Any]]) -> None:
            for key in rows:
                connection.execute(statement, key)
                if connection.execute(still, key).fetchone() is not None:
                    raise _dropped(self._database, "kept a row that a decided epoch deletes", _STAGED)

        return delete_and_look


class DirectWriter(Writer):
    """Hold a task's rows in a temporary table, and upsert them at `pre_commit` in one short transaction.

    So the file's one write lock is never held while rows are computed, and an attempt that dies half-way has shown
    none of them: a rival attempt's last row of a key is not overwritten by an earlier one.
    """

    def __init__(self, database: Database, check: Callable[[pa.RecordBatch], None], txn: Txn, lineage: str) -> None:
        if not database.path.exists():
            what = f"{database.path} is not there on this executor"
            raise Fatal(what, why="the driver opened it", next="put it where every executor can write to it")
        self._database = database
        self._check = check
        self._txn = txn
        self._lineage = lineage
        self._doing = f"write epoch {txn.epoch} to table {database.table.name}"
        with database.explained(self._doing, _UNDECIDED):
            self._connection = database.connect()
        self._held = HeldRows(self._connection, database.table)

    def write(self, batch: pa.RecordBatch) -> None:
        self._check(batch)
        with self._database.explained(self._doing, _UNDECIDED):
            self._connection.execute("BEGIN")  # of the temporary table only: the file is not locked
            self._held.add(batch)
            self._connection.execute("COMMIT")

    def pre_commit(self) -> Committable:
        names = [*self._held.names, *GUARD]
        rows = self._held.select(f", {self._txn.epoch}, {self._txn.generation}")
        statement = self._database.table.upsert(names, rows)
        with closing(self._connection), self._database.explained(self._doing, _UNDECIDED), durably(self._connection):
            done = read_marker(self._connection, self._txn.job, self._txn.sink)
            if done is not None and done.epoch >= self._txn.epoch:
                raise self._late(done.epoch, done.generation)
            self._check_owner()
            written = self._connection.execute(statement).rowcount
            if written != self._held.total:
                raise self._shortfall(self._held.total - written)
        return Committable(self._txn, self._held.total, b"")

    def abort(self) -> None:
        self._connection.close()

    def _check_owner(self) -> None:
        """Raise Refused where another journal has taken the table since the epoch was opened."""
        mine = (self._txn.job, self._txn.sink, self._lineage)
        owner = self._database.owner_in(self._connection)
        if owner != mine:
            what = self._database.owned_by(owner)[0] if owner else "the table was set free by hand"
            raise Refused(what, why=f"this task is of lineage {self._lineage}", next="leave the table to its owner")

    def _shortfall(self, missing: int) -> Fatal | Refused:
        """Return the error for rows that were not written: newer ones stand there, or the table drops rows."""
        guard = ", ".join(GUARD)
        newer = f"SELECT {guard} FROM main.{quoted(self._database.table.name)} WHERE ({guard}) > (?, ?)"
        found = self._connection.execute(newer, (self._txn.epoch, self._txn.generation)).fetchone()
        if found is None:
            return _dropped(self._database, f"dropped {missing} rows of an epoch", _UNDECIDED)
        return self._late(*found)

    def _late(self, epoch: int, generation: int) -> Refused:
        return Refused(
            f"table {self._database.table.name} holds newer rows than this task's of epoch {self._txn.epoch}",
            why=f"epoch {epoch} of generation {generation} is there, this task is of generation"
            f" {self._txn.generation}: an older write never goes over a newer one, so none of its rows was kept",
            next="leave the job to the driver that goes on with it",
        )


class DirectCommitter(MarkerCommitter):
    """Mark an epoch that its tasks have written: the marker says up to which epoch the table is decided."""

    def __init__(self, ctx: JobContext, database: Database) -> None:
        super().__init__(ctx, SqliteApplier(database))
        self._database = database

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self._database.explained("look at the table"):
            found = list(findings(self._database, schema))
            owner = None if found else self._database.owner()
        table = self._database.table
        if owner is not None and owner[:2] != (self._ctx.job, self._ctx.sink):
            found.append(Finding("error", *self._database.owned_by(owner)))
        if not (_kept_together(self._ctx.distribution, table.keys) or participants == 1):
            message = "rows of one key may come from two tasks of an epoch, and then any of them may win"
            listed = ", ".join(table.keys)
            found.append(Finding("warning", message, f'set distribution = "hash({listed})" on this sink'))
        return found

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Make the tables and take the table for this sink. Idempotent, also from two processes; durable."""
        database, ctx = self._database, self._ctx
        with database.explained("make the tables"), database.transaction(database.mode) as connection:
            database.make_tables(connection, schema)
            self._marker(epoch).check_new(read_marker(connection, ctx.job, ctx.sink))
            mine = (ctx.job, ctx.sink, ctx.lineage)
            owner = database.take(connection, mine, ctx.succeeds)
            if owner != mine:
                what, fix = database.owned_by(owner)
                raise LineageError(what, why="epochs of two journals can't be compared row by row", next=fix)
        return ctx.lineage.encode()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        marker = self._marker(epoch, committables)
        database = self._database
        with database.explained(f"mark epoch {epoch}", _WRITTEN), database.transaction() as connection:
            new = marker.must_apply(read_marker(connection, marker.job, marker.sink))
            if new:
                store_marker(connection, marker)
        return [Committed() if new else AlreadyCommitted() for _ in committables]

    def abort(self, undecided: Undecided) -> None:
        """Do nothing: an undecided epoch's rows are overwritten by its replay."""

    def in_doubt(self) -> Iterable[InDoubt]:
        """List nothing: a task's rows are in the table or were never."""
        return ()

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""


def _check_count(database: Database, done: int, given: int, names: Sequence[str]) -> None:
    """Refuse a table that drops rows on its own (ON CONFLICT IGNORE, a trigger). Rows of keys only change nothing."""
    if done != given and set(names) != set(database.table.keys):
        raise _dropped(database, f"dropped {given - done} rows of a decided epoch", _STAGED)


def _dropped(database: Database, what: str, safe: str) -> Fatal:
    return Fatal(
        f"table {database.table.name} {what}, so none was kept",
        why="a trigger with RAISE(IGNORE), or a constraint with ON CONFLICT IGNORE, drops rows silently; " + safe,
        next=f"take it off the table in {database.path}, then start the job again",
    )


def _kept_together(distribution: str | int, keys: Sequence[str]) -> bool:
    """Return whether all rows of one key come in one partition: one there is, or rows are cut by columns of the key."""
    if isinstance(distribution, int) or not distribution.startswith("hash("):
        return distribution == 1
    cut_by = {
        name.strip().strip("`").lower() for name in distribution.removeprefix("hash(").removesuffix(")").split(",")
    }
    return cut_by <= {key.lower() for key in keys}
