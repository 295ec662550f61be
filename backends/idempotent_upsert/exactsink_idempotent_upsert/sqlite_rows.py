"""How rows go into a table of SQLite: several a statement, in the order in which they apply.

Executors import this module.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from exactsink.contract import Fatal
from exactsink_idempotent_upsert.database import STAGED
from exactsink_idempotent_upsert.sqlite_statements import Statements, bound
from exactsink_idempotent_upsert.sqlite_values import sort_values, stored_values
from exactsink_idempotent_upsert.table import Table

__all__ = ["Changes", "HeldRows", "dropped", "insert"]

_AT_ONCE = 10_000  # rows, as Spark hands them over
_MOST_VALUES = 900  # bound in one statement; every build of SQLite takes 999

# By which collation each unique index meets its columns. An upsert takes the index's, which may not be the column's.
_COLLATIONS = """
    SELECT list.name, lower(part.name), part.coll
    FROM pragma_index_list(?) AS list, pragma_index_xinfo(list.name) AS part
    WHERE list."unique" AND NOT list.partial AND part.key ORDER BY list.name
"""


class HeldRows:
    """Rows in a temporary table of the connection, to be read in the order in which they apply.

    The table has no declared types, so it keeps values as they are, and ends with the connection.
    """

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self.names: list[str] = []
        self.total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not self.names:
            self.names = self._table.bound(batch.schema.names)
            held = ", ".join(f"c{i}" for i in range(len(self.names)))
            self._connection.execute(f"CREATE TEMP TABLE exactsink_rows (position INTEGER PRIMARY KEY, {held}, rank)")
        columns = [stored_values(batch.column(name)) for name in self.names]
        order_by = self._table.order_by
        columns.append([None] * batch.num_rows if order_by is None else sort_values(batch.column(order_by)))
        values = f"(NULL, {', '.join('?' * len(columns))})"
        self._connection.executemany(f"INSERT INTO temp.exactsink_rows VALUES {values}", zip(*columns, strict=True))
        self.total += batch.num_rows

    def select(self, more: str = "") -> str:
        held = ", ".join(f"c{i}" for i in range(len(self.names)))
        order = "position" if self._table.order_by is None else "rank, position"
        return f"SELECT {held}{more} FROM temp.exactsink_rows WHERE true ORDER BY {order}"


class Changes:
    """One epoch's upserts and deletes, in the caller's transaction; each row's own order is kept."""

    def __init__(self, connection: sqlite3.Connection, table: Table, place: str) -> None:
        self._connection = connection
        self._table = table
        self._statements = Statements(table)
        self._place = place

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
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
                done = self._connection.execute(self._statements.upsert(held.names, held.select())).rowcount
                self._check_count(done, held.total, held.names)
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
        done = insert(self._connection, lambda rows: self._statements.upsert(names, rows), columns)
        self._check_count(done, len(columns[0]), names)

    def _deleter(self) -> Callable[[Iterable[Sequence[Any]]], object]:
        """Return what deletes keys. Where triggers might keep a row, each is looked for afterwards."""
        table, connection = self._table, self._connection
        parts = connection.execute(_COLLATIONS, (table.name,)).fetchall()
        indexes = [{name: by for _, name, by in index} for _, index in groupby(parts, lambda part: part[0])]
        keys = {key.lower() for key in table.keys}
        collations = next((index for index in indexes if set(index) == keys), {})
        statement = self._statements.by_key("DELETE", collations)
        look = "SELECT 1 FROM main.sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = ?"
        if connection.execute(look, (table.name.lower(),)).fetchone() is None:
            return lambda rows: connection.executemany(statement, rows)
        still = self._statements.by_key("SELECT 1", collations)

        def delete_and_look(rows: Iterable[Sequence[Any]]) -> None:
            for key in rows:
                connection.execute(statement, key)
                if connection.execute(still, key).fetchone() is not None:
                    raise dropped(table.name, self._place, "kept a row that a decided epoch deletes", STAGED)

        return delete_and_look

    def _check_count(self, done: int, given: int, names: Sequence[str]) -> None:
        """Refuse a table that drops rows on its own (a trigger, say). Rows of keys only change nothing."""
        if done != given and set(names) != set(self._table.keys):
            raise dropped(self._table.name, self._place, f"dropped {given - done} rows of a decided epoch", STAGED)


def insert(connection: sqlite3.Connection, statement: Callable[[str], str], columns: Sequence[Sequence[Any]]) -> int:
    """Insert rows, given as columns, in their order; return how many the table took.

    `statement` gets VALUES of as many rows as it is to insert: new ones in one take half the time of one in each.
    """
    width, total = len(columns), len(columns[0])
    values: list[Any] = [None] * (width * total)  # row after row
    for place, column in enumerate(columns):
        values[place::width] = column
    most, taken = max(1, _MOST_VALUES // width), 0
    size, full = most * width, total // most * most
    if full:
        each = (values[first : first + size] for first in range(0, full * width, size))
        taken = connection.executemany(statement(_several(width, most)), each).rowcount
    if full < total:
        taken += connection.execute(statement(_several(width, total - full)), values[full * width :]).rowcount
    return taken


def dropped(table: str, place: str, what: str, safe: str) -> Fatal:
    """Return the error for a table that drops rows."""
    return Fatal(
        f"table {table} {what}, so none was kept",
        why="a trigger with RAISE(IGNORE), or a constraint with ON CONFLICT IGNORE, drops rows silently; " + safe,
        next=f"take it off the table in {place}, then start the job again",
    )


def _several(width: int, rows: int) -> str:
    return f"VALUES {', '.join([bound(width)] * rows)}"
