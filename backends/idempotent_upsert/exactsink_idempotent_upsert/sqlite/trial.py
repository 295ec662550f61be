"""The rows that a table of SQLite refuses, and the values that it changes: the driver reads its rules, tasks try rows.

If the table has constraints that a row may break, tasks try rows on an empty copy before the decision. Executors import
this module; they may not be able to reach the file.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Fatal, Finding
from exactsink.toolkit.sql import ascii_lower, quoted
from exactsink_idempotent_upsert.limits import Limit
from exactsink_idempotent_upsert.sqlite.rows import Changes, insert, other_unique
from exactsink_idempotent_upsert.sqlite.statements import Statements, column_type, listed, stored_values
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = ["Catalog", "Trial", "affinity", "lost"]

_COLUMNS = """
    SELECT name, CASE WHEN ? AND upper(type) = 'ANY' THEN 'ANY (BLOB)' ELSE type END AS type,
        "notnull", dflt_value, pk, hidden,
        "notnull" AND dflt_value IS NULL AND NOT hidden AND NOT (pk AND upper(type) = 'INTEGER') AS required
    FROM pragma_table_xinfo(?) ORDER BY cid
"""  # SQLite assigns an INTEGER primary key by itself; ANY of a STRICT table keeps values unchanged, as BLOB does
_FORM = """
    SELECT sql FROM main.sqlite_master
    WHERE type IN ('table', 'index') AND lower(tbl_name) = lower(?) AND sql IS NOT NULL ORDER BY type = 'index'
"""
_COMPUTED = """
    SELECT 1 FROM pragma_index_list(?) AS list, pragma_index_info(list.name) AS part WHERE list.partial OR part.cid = -2
"""
_AFFINITIES = {"INTEGER": "INT", "TEXT": "CHAR|CLOB|TEXT", "BLOB": "BLOB|^$", "REAL": "REAL|FLOA|DOUB", "NUMERIC": ""}
_STRICTLY = {"BIGINT": ("INT", "INTEGER"), "BOOLEAN": ("INT", "INTEGER"), "DOUBLE": ("REAL",)}
_DIGITS = 15  # SQLite keeps that many of a number that it turns into text, and of a text that it turns into a number
_WHOLE = 2**53  # beyond it a float skips whole numbers
_CONSTRAINED = re.compile(r"\b(CHECK|CONFLICT)\b", re.IGNORECASE)
_STRICT = re.compile(r"\)[^)]*\bSTRICT\b[^)]*$", re.IGNORECASE)
_SILENT = re.compile(r"\bON\s+CONFLICT\s+(REPLACE|IGNORE)\b", re.IGNORECASE)
_REPLACE = re.compile(r"\bON\s+CONFLICT\s+REPLACE\b", re.IGNORECASE)
_UNIQUE_CODES, _NULL_REFUSED = (1555, 2067, 2579), ("HaltIfNull", 1299)  # a primary key, UNIQUE, a row's number; NULL
_SAFE = "the epoch is not decided yet: SQLite would refuse the row after the decision, when it is too late"


class Catalog:
    """The file's description of one table."""

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self.connection, self._table = connection, table

    @cached_property
    def columns(self) -> dict[str, sqlite3.Row]:
        cursor = self.connection.cursor()
        cursor.row_factory = sqlite3.Row
        given = any(map(_STRICT.search, self.form[:1])), self._table.name
        return {ascii_lower(row["name"]): row for row in cursor.execute(_COLUMNS, given)}

    @cached_property
    def form(self) -> tuple[str, ...]:
        """The statements that made the table, and then its indexes."""
        return tuple(sql for (sql,) in self.connection.execute(_FORM, (self._table.name,)))

    def limits(self, schema: pa.Schema) -> dict[str, Limit]:
        """Return the limits of columns: NOT NULL, and in float columns only whole numbers that a float can hold."""
        names, found = self._table.stored(schema.names), {}
        _, filled = self.clauses([name for name in names if ascii_lower(name) in self.columns])
        for field in map(schema.field, names):
            if (there := self.columns.get(ascii_lower(field.name))) is not None:
                required = bool(there["notnull"]) and there["name"] not in filled and field.name not in self._table.keys
                whole = _WHOLE if affinity(there["type"]) == "REAL" and pa.types.is_integer(field.type) else None
                found[field.name] = Limit(required=required, least=whole and -whole, greatest=whole)
        return {name: limit for name, limit in found.items() if limit != Limit()}

    def tried(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the statements that make a copy of the table; none where no row can break a constraint."""
        names = self._table.stored(schema.names)
        unfit = map(self._may_not_fit, map(schema.field, names))
        computed = self.connection.execute(_COMPUTED, (self._table.name,)).fetchone()
        constrained = computed or any(other_unique(self.connection, self._table, names)) or any(unfit)
        return self.form if constrained or any(map(_CONSTRAINED.search, self.form[:1])) else ()

    def _may_not_fit(self, field: pa.Field) -> bool:
        """Return whether a value might be of no type that a column takes, of a STRICT table or a row's number."""
        there, kind = self.columns.get(ascii_lower(field.name)), column_type(field.type) or ""
        drawn = [one["type"].upper() for one in self.columns.values() if one["pk"]] == ["INTEGER"]  # the row's number
        if there is None or not (_STRICT.search(self.form[0]) or (there["pk"] and drawn)):
            return False
        return there["hidden"] > 0 or there["type"].upper() not in ("ANY (BLOB)", kind, *_STRICTLY.get(kind, ()))

    def clauses(self, names: Sequence[str]) -> tuple[list[str], set[str]]:
        """Return the unique constraints by which the table drops or deletes rows, and the columns whose NULLs it fills.

        Without its ON CONFLICT clauses the table would refuse such rows.
        """
        sql, *indexes = self.form or ("",)
        if not _SILENT.search(sql):
            return [], set()
        (unique, nulls), (loud, _), (_, unfilled) = (
            _refusals([made, *indexes], self._table, names)
            for made in (sql, *(clause.sub("ON CONFLICT ABORT", sql) for clause in (_SILENT, _REPLACE)))
        )
        return sorted(loud - unique), {said[len(self._table.name) + 1 :] for said in unfilled - nulls}  # `table.column`


class Trial:
    """An empty copy of the table, in a separate database that spills to disk when it grows.

    Each row is inserted as into the table, which finds the constraint that it breaks. If rows are applied whole and in
    their order of arrival, the copy keeps them, and so finds two rows of a task that break a unique constraint other
    than that of the keys. Conflicts with rows of other tasks, and with existing rows, can't be found here.
    """

    def __init__(self, table: Table, form: Sequence[str], names: Sequence[str]) -> None:
        self._table = table
        self._stored = table.stored(names)
        self._copy = sqlite3.connect("", isolation_level=None)
        try:
            for statement in ("PRAGMA journal_mode = MEMORY", "PRAGMA synchronous = OFF", *form):
                self._copy.execute(statement).close()
        except sqlite3.Error as error:
            what = f"table {table.name} can't be copied on this executor: {error}"
            raise Fatal(what, why="its SQLite differs from the driver's", next="give both the same Python") from error
        whole = table.update_columns is None and not table.expressions and table.mode != "insert_if_absent"
        self._keeps = whole and table.ordered_by is None and any(other_unique(self._copy, table, self._stored))

    def check(self, batch: pa.RecordBatch) -> None:
        """Try a batch. Raises Fatal with the first row that the table would refuse."""
        if refused := self._refused(batch, alone=not self._keeps):
            for number in range(batch.num_rows if batch.num_rows > 1 else 0):
                self.check(batch.slice(number, 1))
            raise refused

    def refusal(self, batch: pa.RecordBatch) -> str | None:
        """Return the table's reason to refuse a row, whatever rows are beside it. Raises Fatal."""
        refused = self._refused(batch, alone=True)
        if refused and not isinstance(refused.__cause__, (sqlite3.IntegrityError, sqlite3.DataError)):
            raise refused  # a full disk, for example, is not a row's fault
        return refused.what if refused else None

    def close(self) -> None:
        self._copy.close()

    def _try(self, batch: pa.RecordBatch, *, alone: bool) -> None:
        with self._copy:  # rolls back, so that row by row it happens again
            self._copy.execute("BEGIN")
            if not alone:
                Changes(self._copy, self._table, "the target", batch.schema.names, _SAFE).apply([batch])
                return
            columns = [stored_values(batch.column(name)) for name in self._stored]
            if self._table.deletes:  # of a row that deletes, only the keys are ever used
                stays = pc.invert(batch.column(DELETED)).to_pylist()
                columns = [list(compress(column, stays)) for column in columns]
            into = f"INSERT OR REPLACE INTO {listed([self._table.name])} ({listed(self._stored)})"
            insert(self._copy, lambda rows: f"{into} {rows}", columns)
            self._copy.execute(f"DELETE FROM {listed([self._table.name])}")

    def _refused(self, batch: pa.RecordBatch, *, alone: bool) -> Fatal | None:
        try:
            self._try(batch, alone=alone)
        except sqlite3.Error as error:
            first = {key: stored_values(batch.column(key)[:1]) for key in self._table.keys}
            keys = ", ".join(f"{key} = {value!r}" for key, values in first.items() for value in values)
            what = f"table {self._table.name} refuses the row with {keys}: {error}"
            refused = Fatal(what, why=_SAFE, next="filter or change such rows before this sink, or alter the table")
            refused.__cause__ = error
            return refused
        return None


def affinity(declared: str) -> str:
    """Return the type to which SQLite converts a column's values, by its rules in their order; BLOB: no conversion."""
    return next(kind for kind, parts in _AFFINITIES.items() if re.search(parts, declared.upper()))


def lost(table: Table, field: pa.Field, declared: str) -> Iterator[Finding]:
    """Find values that a column would change, and a version that it would not keep in its own order."""
    kind, stored, to = field.type, column_type(field.type), affinity(declared)
    found = f"column {field.name} of table {table.name} is declared {declared}"
    number = to not in ("TEXT", "BLOB")
    digits = kind.precision if pa.types.is_decimal(kind) else 0
    if (number and digits > _DIGITS) or (to == "TEXT" and pa.types.is_floating(kind)):
        fix = f"declare {quoted(field.name)} {stored} in the table"
        yield Finding("error", f"{found}: SQLite would keep {_DIGITS} digits of {kind}", fix)
    elif number and stored == "TEXT" and not digits and not pa.types.is_temporal(kind):
        fix = f"declare {quoted(field.name)} TEXT in the table, or cast it to a number in the transform"
        yield Finding("warning", f"{found}, the rows have text: SQLite would store '007' as the number 7", fix)
    if field.name == table.version and stored != "BLOB":
        other = to != "BLOB" and (stored == "TEXT") != (to == "TEXT")
        if digits or other:
            message = f"`version` names {field.name}, a {kind}: as {declared} the table keeps it in another order"
            fix = f"cast {field.name} to BIGINT or to a timestamp in the transform, and declare the column so"
            yield Finding("error", message, fix)


def _refusals(form: Sequence[str], table: Table, names: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return the columns that SQLite's own program for an insert requires to be unique, and to be not NULL."""
    with closing(sqlite3.connect(":memory:")) as copy:
        for made in form:
            copy.execute(made)
        conflict = f"ON CONFLICT ({listed(table.keys)}) DO NOTHING"
        program = copy.execute(f"EXPLAIN {Statements(table).insert(names)} {conflict}", [None] * len(names)).fetchall()
    filled = {register for _, what, register, *_ in program if what == "NotNull"}
    unique = {said for _, what, code, _, _, said, *_ in program if what == "Halt" and code in _UNIQUE_CODES}
    nulls = [(said, register) for _, what, code, _, register, said, *_ in program if (what, code) == _NULL_REFUSED]
    return unique, {said for said, register in nulls if register not in filled}
