"""What a SQLite table refuses, found before the decision: tasks try each row on an empty copy of the table.

Only a table with such constraints is copied. The driver reads its form; executors, which may not reach the file, import
this module to make the copy.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Fatal
from exactsink_idempotent_upsert.limits import Limit
from exactsink_idempotent_upsert.names import ascii_lower
from exactsink_idempotent_upsert.sqlite.rows import Changes, insert
from exactsink_idempotent_upsert.sqlite.statements import bound, listed
from exactsink_idempotent_upsert.sqlite.values import column_type, stored_values
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = ["Trial", "filled_columns", "form_of", "limits_of", "other_unique", "silent_unique", "table_sql"]

_Program = list[tuple[Any, ...]]

_SQL = "SELECT sql FROM main.sqlite_master WHERE type = 'table' AND lower(name) = lower(?)"
_INDEXES = "SELECT sql FROM main.sqlite_master WHERE type = 'index' AND lower(tbl_name) = lower(?) AND sql IS NOT NULL"
_COLUMNS = 'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)'
_UNIQUE = """
    SELECT list.name, part.name FROM pragma_index_list(?) AS list, pragma_index_info(list.name) AS part
    WHERE list."unique" ORDER BY list.seq, part.seqno
"""
_COMPUTED = """
    SELECT 1 FROM pragma_index_list(?) AS list, pragma_index_info(list.name) AS part
    WHERE list.partial OR part.cid = -2
"""
_EXPRESSION = "an expression"
_CONSTRAINED = re.compile(r"\b(CHECK|CONFLICT)\b", re.IGNORECASE)
_FILLED = re.compile(r"\bNOT\s+NULL\s+ON\s+CONFLICT\s+REPLACE\b", re.IGNORECASE)
_SILENT = re.compile(r"\bON\s+CONFLICT\s+(REPLACE|IGNORE)\b", re.IGNORECASE)
_REPLACE = re.compile(r"\bON\s+CONFLICT\s+REPLACE\b", re.IGNORECASE)
_STRICT = re.compile(r"\)[^)]*\bSTRICT\b[^)]*$", re.IGNORECASE)
_SAFE = "the epoch is not decided yet: SQLite would refuse the row after the decision, when it is too late"
_UNIQUE_CODES = (1555, 2067, 2579)  # of a primary key, of UNIQUE, of a row's number
_NULL_REFUSED = ("HaltIfNull", 1299)
_EXACT = {"BIGINT": ("INT", "INTEGER"), "BOOLEAN": ("INT", "INTEGER"), "DOUBLE": ("REAL",)}


def table_sql(connection: sqlite3.Connection, table: str) -> str:
    """Return the statement that made a table; empty where it is not there."""
    found = connection.execute(_SQL, (table,)).fetchone()
    return str(found[0]) if found is not None and found[0] else ""


def limits_of(connection: sqlite3.Connection, table: Table, schema: pa.Schema) -> dict[str, Limit]:
    """Return which columns, besides the keys, take no NULL; where some make it their default, rows are tried."""
    if _FILLED.search(table_sql(connection, table.name)):
        return {}
    required = {ascii_lower(name) for name, _, notnull, *_ in connection.execute(_COLUMNS, (table.name,)) if notnull}
    others = [name for name in table.stored(schema.names) if name not in table.keys]
    return {name: Limit(required=True) for name in others if ascii_lower(name) in required}


def form_of(connection: sqlite3.Connection, table: Table, schema: pa.Schema) -> tuple[str, ...]:
    """Return the statements that make the table and its indexes; none where no row can break a constraint."""
    sql = table_sql(connection, table.name)
    computed = connection.execute(_COMPUTED, (table.name,)).fetchone() is not None
    if not sql or not (
        _CONSTRAINED.search(sql)
        or computed
        or any(other_unique(connection, table, table.stored(schema.names)))
        or _types_may_not_fit(connection, table, schema, strict=_STRICT.search(sql) is not None)
    ):
        return ()
    return (sql, *(row[0] for row in connection.execute(_INDEXES, (table.name,))))


def other_unique(connection: sqlite3.Connection, table: Table, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Return the columns of each unique constraint that rows of these columns may break, besides their keys."""
    found: dict[str, list[str]] = {}
    for index, column in connection.execute(_UNIQUE, (table.name,)):
        found.setdefault(index, []).append(column or _EXPRESSION)
    own = [name for name, _, _, pk, _ in connection.execute(_COLUMNS, (table.name,)) if pk]
    if len(own) == 1 and own not in found.values():  # a row's number has no index
        found["the row's number"] = own
    keys, brought = ({ascii_lower(name) for name in some} for some in (table.keys, names))
    for columns in found.values():
        folded = set(map(ascii_lower, columns))
        if not keys <= folded and folded & (brought | {_EXPRESSION}):
            yield tuple(columns)


def silent_unique(connection: sqlite3.Connection, table: Table, names: Sequence[str]) -> list[str]:
    """Return the columns of each unique constraint, besides the keys', by which SQLite deletes rows of other keys
    (ON CONFLICT REPLACE) or drops those that come (IGNORE), where it would refuse them without that clause.
    """
    refused, loudly = (
        {said for _, what, code, _, _, said, *_ in program if what == "Halt" and code in _UNIQUE_CODES}
        for program in _programs(connection, table, names, _SILENT)
    )
    return sorted(loudly - refused)


def filled_columns(connection: sqlite3.Connection, table: Table, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of which SQLite would store the default for a NULL in such a row, and those defaults."""
    refused, loudly = (_nulls_refused(program) for program in _programs(connection, table, names, _REPLACE))
    filled = {said[len(table.name) + 1 :] for said in loudly - refused}  # said as `table.column`
    brought = set(map(ascii_lower, names))
    defaults = connection.execute("SELECT name, dflt_value FROM pragma_table_xinfo(?)", (table.name,))
    return {name: default for name, default in defaults if name in filled and ascii_lower(name) in brought}


def _nulls_refused(program: _Program) -> set[str]:
    """Return the columns whose NULL ends an upsert, and gets no default before."""
    filled = {register for _, what, register, *_ in program if what == "NotNull"}
    nulls = [(said, register) for _, what, code, _, register, said, *_ in program if (what, code) == _NULL_REFUSED]
    return {said for said, register in nulls if register not in filled}


def _programs(
    connection: sqlite3.Connection, table: Table, names: Sequence[str], clause: re.Pattern[str]
) -> tuple[_Program, _Program]:
    """Return SQLite's own program for an upsert, and what it would be with ABORT in the place of a clause."""
    sql = table_sql(connection, table.name)
    if not clause.search(sql):
        return [], []
    indexes = [row[0] for row in connection.execute(_INDEXES, (table.name,))]
    return (
        _program([sql, *indexes], table, names),
        _program([clause.sub("ON CONFLICT ABORT", sql), *indexes], table, names),
    )


def _program(form: Iterable[str], table: Table, names: Sequence[str]) -> _Program:
    with closing(sqlite3.connect(":memory:")) as copy:
        for statement in form:
            copy.execute(statement)
        insert = f"INSERT INTO {listed([table.name])} ({listed(names)}) VALUES {bound(len(names))}"
        explain = f"EXPLAIN {insert} ON CONFLICT ({listed(table.keys)}) DO NOTHING"
        return copy.execute(explain, [None] * len(names)).fetchall()


def _types_may_not_fit(connection: sqlite3.Connection, table: Table, schema: pa.Schema, *, strict: bool) -> bool:
    """Return whether a value might be of no type that a column takes, of a STRICT table or a row's number."""
    columns = connection.execute(_COLUMNS, (table.name,)).fetchall()
    alone = sum(1 for _, _, _, pk, _ in columns if pk) == 1
    brought = {ascii_lower(name): column_type(schema.field(name).type) for name in table.stored(schema.names)}
    for name, declared, _, pk, hidden in columns:
        kind, declared = brought.get(ascii_lower(name)), declared.upper()
        if strict and hidden:
            return True
        if kind is None or not (strict or (pk and alone and declared == "INTEGER")):
            continue
        if declared not in ("ANY", kind, *_EXACT.get(kind, ())):
            return True
    return False


class Trial:
    """A copy of the table, empty at first, in a database of its own that spills to disk when it grows.

    Each row is inserted as into the table, which finds what it breaks by itself. Two rows of a task that break another
    unique constraint than the keys' are found, too, where rows are taken as they come and whole: the copy keeps them
    then. What they do to rows of other tasks, and to those that stand in the table, can't be known here.
    """

    def __init__(self, table: Table, form: Sequence[str], names: Sequence[str]) -> None:
        self._table = table
        self._stored = table.stored(names)
        self._copy = sqlite3.connect("", isolation_level=None)
        try:
            for pragma in ("journal_mode = MEMORY", "synchronous = OFF"):
                self._copy.execute(f"PRAGMA {pragma}").close()
            for statement in form:
                self._copy.execute(statement)
        except sqlite3.Error as error:
            what = f"table {table.name} can't be copied on this executor: {error}"
            raise Fatal(what, why="its SQLite is another than the driver's", next="give both the same") from error
        whole = table.update_columns is None and not table.expressions and table.mode != "insert_if_absent"
        as_they_come = table.ordered_by is None
        self._keeps = whole and as_they_come and any(other_unique(self._copy, table, self._stored))

    def check(self, batch: pa.RecordBatch) -> None:
        """Try a batch. Raises Fatal with the first row that the table would refuse."""
        try:
            with self._copy:  # rolls back, so that row by row it happens again
                self._copy.execute("BEGIN")
                self._try(batch)
        except sqlite3.Error as error:
            for number in range(batch.num_rows if batch.num_rows > 1 else 0):
                self.check(batch.slice(number, 1))
            raise self._refused(batch, error) from error

    def refusal(self, batch: pa.RecordBatch) -> str | None:
        """Return what the table refuses a row with, whatever rows are beside it. Raises Fatal."""
        try:
            with self._copy:
                self._copy.execute("BEGIN")
                self._try_alone(batch)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            return self._refused(batch, error).what
        except sqlite3.Error as error:  # a full disk, say, is no row's fault
            raise self._refused(batch, error) from error
        return None

    def close(self) -> None:
        self._copy.close()

    def _try(self, batch: pa.RecordBatch) -> None:
        if self._keeps:
            Changes(self._copy, self._table, "the target", batch.schema.names, _SAFE).apply([batch])
        else:
            self._try_alone(batch)

    def _try_alone(self, batch: pa.RecordBatch) -> None:
        columns = [stored_values(batch.column(name)) for name in self._stored]
        if self._table.deletes:  # of a row that deletes, only the keys are ever used
            stays = pc.invert(batch.column(DELETED)).to_pylist()
            columns = [list(compress(column, stays)) for column in columns]
        into = f"INSERT OR REPLACE INTO {listed([self._table.name])} ({listed(self._stored)})"
        insert(self._copy, lambda rows: f"{into} {rows}", columns)
        self._copy.execute(f"DELETE FROM {listed([self._table.name])}")

    def _refused(self, batch: pa.RecordBatch, error: sqlite3.Error) -> Fatal:
        values: list[Any] = []
        with suppress(IndexError):
            values = [stored_values(batch.column(key))[0] for key in self._table.keys]
        keys = ", ".join(f"{key} = {value!r}" for key, value in zip(self._table.keys, values, strict=False))
        return Fatal(
            f"table {self._table.name} refuses the row with {keys}: {error}",
            why=_SAFE,
            next="filter or change such rows before this sink, or alter the table",
        )
