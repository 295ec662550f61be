"""Write rows into a table of SQLite: several per statement, in the order in which they apply.

Executors import this module.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Fatal
from exactsink.toolkit.sql import ascii_lower, quoted
from exactsink_idempotent_upsert.database import STAGED
from exactsink_idempotent_upsert.sqlite.statements import Statements, bound, sort_values, stored_values
from exactsink_idempotent_upsert.table import Table

__all__ = ["Changes", "HeldRows", "insert", "met_by", "other_unique", "unique_rules"]

_AT_ONCE = 10_000  # rows, as Spark hands them over
_MOST_VALUES = 900  # bound in one statement; every build of SQLite takes 999
_SORTED_BYTES = 64 * 2**20  # of rows in Arrow's memory: so many are sorted by key at a time

_MAY_DROP = """
    SELECT 1 FROM main.sqlite_master
    WHERE (type = 'trigger' AND lower(tbl_name) = lower(:name)) OR (lower(name) = lower(:name) AND sql LIKE '%IGNORE%')
"""
_PARENTS = "SELECT 1 FROM pragma_foreign_key_list(?)"
_TYPES = "SELECT lower(name), upper(type) FROM pragma_table_info(?)"
_UNIQUE = """
    SELECT list.name, part.name, part.coll, list.partial, part.seqno
    FROM pragma_index_list(:name) AS list, pragma_index_xinfo(list.name) AS part WHERE list."unique" AND part.key
    UNION ALL SELECT '', name, 'BINARY', 0, pk FROM pragma_table_info(:name)
    WHERE pk AND NOT EXISTS (SELECT 1 FROM pragma_index_list(:name) WHERE origin = 'pk') ORDER BY 1, 5
"""  # a row's number has no index
_EXPRESSION, _PARTLY = "an expression", "of some rows"


class HeldRows:
    """Rows in a temporary table of the connection, to be read in the order in which they apply.

    The table has no declared types, so it keeps values unchanged. It ends with the connection.
    """

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self.names, self._held, self.total = list[str](), "", 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not self.names:
            self.names = self._table.bound(batch.schema.names)
            self._held = ", ".join(f"c{i}" for i in range(len(self.names)))
            self._connection.execute(f"CREATE TEMP TABLE exactsink_rows (n INTEGER PRIMARY KEY, {self._held}, rank)")
        columns = [stored_values(batch.column(name)) for name in self.names]
        order_by = self._table.ordered_by
        columns.append([None] * batch.num_rows if order_by is None else sort_values(batch.column(order_by)))
        insert(self._connection, lambda rows: f"INSERT INTO temp.exactsink_rows ({self._held}, rank) {rows}", columns)
        self.total += batch.num_rows

    def select(self, more: str = "") -> str:
        """Return the SELECT of rows in their order; the first comes last where it is to go over the others."""
        way = " DESC" if self._table.guarded and self._table.mode == "insert_if_absent" else ""
        return f"SELECT {self._held}{more} FROM temp.exactsink_rows WHERE true ORDER BY rank{way}, n{way}"


class Changes:
    """One epoch's upserts and deletes, in the caller's transaction; each row's own order is kept."""

    def __init__(
        self, connection: sqlite3.Connection, table: Table, place: str, names: Sequence[str], safe: str = STAGED
    ) -> None:
        self._connection = connection
        self._table = table
        self._place = place
        self._safe = safe
        self._names = table.bound(names)
        self._stored = table.stored(names)
        self.statements = Statements.of(connection, table, self._stored)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Apply rows in their order of arrival, or a whole epoch from the least to the greatest.

        Rows of a key, by the table's own equality, are applied one after another.
        """
        if not _needs_order(self._table):
            for batch in self._by_key(batches):
                self._apply([stored_values(batch.column(name)) for name in self._names])
            return
        held = HeldRows(self._connection, self._table)
        for batch in batches:
            held.add(batch)
        if held.total and not self._table.deletes:
            done = self._connection.execute(self.statements.upsert(self._stored, held.select())).rowcount
            self.check_kept(done, held.total, lambda: self._connection.execute(held.select()))
        elif held.total:
            in_order = self._connection.execute(held.select())
            while rows := in_order.fetchmany(_AT_ONCE):
                self._apply(list(zip(*rows, strict=True)))

    def _by_key(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Return rows in the order of keys, each key's in theirs, where that makes no difference: the table's pages are
        met once each then, not once for each row.
        """
        if self._table.deletes or self._table.expressions or not self._any_order:
            return batches
        return (part for chunk in _chunks(batches) for part in _sorted(chunk, self._table.keys))

    def _apply(self, columns: Sequence[Sequence[Any]]) -> None:
        """Upsert, or upsert and delete in turns, as the last column says."""
        if not self._table.deletes:
            self._upsert(columns)
            return
        first = 0
        for deleted, run in groupby(columns[-1]):
            end = first + sum(1 for _ in run)
            (self._delete if deleted else self._upsert)([column[first:end] for column in columns[:-1]])
            first = end

    def _upsert(self, columns: Sequence[Sequence[Any]]) -> None:
        done = insert(self._connection, lambda rows: self.statements.upsert(self._stored, rows), columns)
        self.check_kept(done, len(columns[0]), lambda: zip(*columns, strict=True))

    def _delete(self, columns: Sequence[Sequence[Any]]) -> None:
        rows = list(self._identified(zip(*columns, strict=True)))
        where = "" if self._table.version is None else f" AND {self.statements.not_above('?')}"
        self._connection.executemany(self._of_key("DELETE") + where, rows)
        if self._may_drop and not all(self._missing(where, rows)):
            raise self._dropped("kept a row that a decided epoch deletes")

    def check_kept(self, done: int, given: int, rows: Callable[[], Iterable[Sequence[Any]]]) -> None:
        """Refuse a table that drops rows by itself, for example by a trigger. Raises Fatal.

        If rows are rightly left out, because the key or a greater version exists, each of them is looked up.
        """
        if done == given:
            return
        version, first = self._table.version, self._table.mode == "insert_if_absent"
        if version is None and not first and self.statements.changed(self._stored):
            raise self._dropped(f"dropped {given - done} rows of an epoch")
        where = f" AND ({quoted(version)} >= ? COLLATE BINARY OR ? IS NULL)" if version is not None else ""
        sought = ([*row, row[-1]] if where else row for row in self._identified(rows()))
        if self._may_drop and any(self._missing(where, sought)):
            raise self._dropped("dropped a row of an epoch")

    def _identified(self, rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """Return each row's keys, and its version where there is one."""
        by = (*self._table.keys, *([self._table.version] if self._table.version is not None else ()))
        places = [self._stored.index(name) for name in by]
        return ([row[place] for place in places] for row in rows)

    def _missing(self, where: str, rows: Iterable[Sequence[Any]]) -> Iterator[bool]:
        """Look for the row of each key."""
        there = self._of_key("SELECT 1") + where
        return (self._connection.execute(there, row).fetchone() is None for row in rows)

    def _of_key(self, what: str) -> str:
        return self.statements.by_key(what, self._collations)

    def _dropped(self, what: str) -> Fatal:
        why = "a trigger with RAISE(IGNORE), or a constraint with ON CONFLICT IGNORE, drops rows silently"
        fix = f"drop it from the table in {self._place}, then start the job again"
        return Fatal(f"table {self._table.name} {what}, so none was kept", why=f"{why}; {self._safe}", next=fix)

    @cached_property
    def _collations(self) -> Mapping[str, str]:
        return met_by(unique_rules(self._connection, self._table), self._table.keys)

    @cached_property
    def _any_order(self) -> bool:
        """Whether rows of several keys may change places.

        They may if keys are whole numbers, which Arrow and SQLite compare alike, and if the table has neither a trigger
        nor another rule about its rows.
        """
        name = (self._table.name,)
        types = dict(self._connection.execute(_TYPES, name))
        whole = all("INT" in types.get(ascii_lower(key), "") for key in self._table.keys)
        alone = len(unique_rules(self._connection, self._table)) == 1
        return whole and alone and not self._may_drop and not self._connection.execute(_PARENTS, name).fetchall()

    @cached_property
    def _may_drop(self) -> bool:
        """Whether the table has triggers, or constraints that ignore rows."""
        return self._connection.execute(_MAY_DROP, {"name": self._table.name}).fetchone() is not None


def unique_rules(connection: sqlite3.Connection, table: Table) -> list[dict[str, str]]:
    """Return the columns of each unique constraint, with the collations by which it meets values."""
    parts = connection.execute(_UNIQUE, {"name": table.name}).fetchall()
    return [
        {(column or _EXPRESSION): _PARTLY if partial else by for _, column, by, partial, _ in rule}
        for _, rule in groupby(parts, lambda part: part[0])
    ]


def met_by(rules: Iterable[Mapping[str, str]], keys: Iterable[str]) -> dict[str, str]:
    """Return by which collation an upsert meets each key: the unique index's, which may not be the column's."""
    folded = ({ascii_lower(name): by for name, by in rule.items()} for rule in rules if _PARTLY not in rule.values())
    return next((rule for rule in folded if rule.keys() == set(map(ascii_lower, keys))), {})


def other_unique(connection: sqlite3.Connection, table: Table, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Return the columns of each unique constraint that rows of these columns may break, besides their keys."""
    keys, brought = (set(map(ascii_lower, some)) for some in (table.keys, names))
    for rule in unique_rules(connection, table):
        folded = set(map(ascii_lower, rule))
        if not keys <= folded and folded & (brought | {_EXPRESSION}):
            yield tuple(rule)


def insert(connection: sqlite3.Connection, statement: Callable[[str], str], columns: Sequence[Sequence[Any]]) -> int:
    """Insert rows, given as columns, in their order. Return how many rows the table took.

    `statement` gets VALUES for so many rows. One statement for many new rows takes half the time of one for each.
    """
    width = len(columns)
    values: list[Any] = [None] * (width * len(columns[0]))  # row after row
    for place, column in enumerate(columns):
        values[place::width] = column
    run, size, taken = connection.cursor().execute, max(1, _MOST_VALUES // width) * width, 0
    text = cache(lambda rows: statement(f"VALUES {', '.join([bound(width)] * rows)}"))
    for first in range(0, len(values), size):
        some = values[first : first + size]
        taken += run(text(len(some) // width), some).rowcount
    return taken


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put rows together, as many as are sorted at a time."""
    size = 0

    def chunk(batch: pa.RecordBatch) -> tuple[int, pa.Schema]:
        nonlocal size
        size += batch.nbytes
        return size // _SORTED_BYTES, batch.schema

    return (pa.Table.from_batches(list(some)) for _, some in groupby(batches, chunk))


def _sorted(rows: pa.Table, keys: Sequence[str]) -> list[pa.RecordBatch]:
    """Return rows in the order of their keys, or unsorted if Arrow can't sort them."""
    values = pa.table({str(place): rows.column(key) for place, key in enumerate(keys)})
    if all(map(pa.types.is_integer, values.schema.types)):
        with suppress(pa.ArrowException):  # views of text, in pyarrow 26: any order of several keys will do
            order = pc.sort_indices(values, sort_keys=[(name, "ascending") for name in values.column_names])
            rows = rows.combine_chunks().take(order)
    return list(rows.to_batches(max_chunksize=_AT_ONCE))


def _needs_order(table: Table) -> bool:
    """Return whether an epoch's rows are sorted; of whole rows, the condition on the version finds the greatest."""
    whole = not (table.deletes or table.expressions) and table.update_columns is None
    return table.ordered_by is not None and not (table.version is not None and whole)
