"""What the frame, the file and the table must be before the first row; each finding with what mends it. Driver only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from exactsink.model import Finding
from exactsink_idempotent_upsert.tables import add_column, create_table, quoted, unique_index, upsert
from exactsink_idempotent_upsert.values import storage

if TYPE_CHECKING:
    from exactsink_idempotent_upsert.backend import UpsertOptions

__all__ = ["findings"]

_TEXT_DIGITS = 15
"""SQLite keeps that many digits of a decimal text that it puts into a column of numbers."""

Reader = Callable[[], AbstractContextManager[sqlite3.Connection]]


@dataclass(frozen=True)
class _Column:
    """One row of `PRAGMA table_xinfo`."""

    name: str
    declared: str
    required: bool
    key_position: int

    @property
    def holds_numbers(self) -> bool:
        """Say whether SQLite turns text that looks like a number into one here (its rules of affinity, in order)."""
        declared = self.declared.upper()
        if "INT" in declared:
            return True
        return not any(part in declared for part in ("CHAR", "CLOB", "TEXT", "BLOB")) and declared != ""


def findings(options: UpsertOptions, schema: pa.Schema, path: Path, reader: Reader) -> Iterator[Finding]:
    """Find what keeps such rows from being upserted. Changes nothing, and never creates the file."""
    in_frame = list(_frame(options, schema))
    yield from in_frame
    in_place = list(_place(path))
    yield from in_place
    if in_frame or in_place:
        return  # what follows would repeat it in other words
    columns: list[_Column] = []
    if path.exists():
        with reader() as connection:
            try:
                columns = _columns(connection, options.table)
            except sqlite3.DatabaseError as error:
                if "not a database" not in str(error) and "malformed" not in str(error):
                    raise
                yield Finding("error", f"{path} is not a SQLite database: {error}", "name another file in `url`")
                return
            if columns:
                yield from _table(options, schema, connection, columns)
    if not columns and not options.create:
        message = f"table {options.table} does not exist in {path}"
        statement = create_table(options.table, options.keys, schema)
        yield Finding("error", message, f"set create = true, or run: {statement};")


def _frame(options: UpsertOptions, schema: pa.Schema) -> Iterator[Finding]:
    for option, names in (("keys", options.keys), ("order_by", (options.order_by,))):
        for name in names:
            if name is not None and name not in schema.names:
                message = f"`{option}` names column {name}, the rows have {', '.join(schema.names)}"
                yield Finding("error", message, f"select {name} into this sink, or correct `{option}`")
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            message = f"columns {seen[name.lower()]} and {name} are one column to SQLite"
            yield Finding("error", message, f"rename one of them: withColumnRenamed({name!r}, ...)")
        seen[name.lower()] = name
    for field in schema:
        if storage(field.type) is None:
            expression = f"to_json({field.name})" if pa.types.is_nested(field.type) else f"cast({field.name} AS STRING)"
            message = f"column {field.name} is of type {field.type}, which SQLite can't hold"
            yield Finding("error", message, f"convert it in the transform: {expression} AS {field.name}")


def _place(path: Path) -> Iterator[Finding]:
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


def _table(
    options: UpsertOptions, schema: pa.Schema, connection: sqlite3.Connection, columns: Sequence[_Column]
) -> Iterator[Finding]:
    table = options.table
    held = {column.name.lower(): column for column in columns}
    given = {name.lower() for name in schema.names}
    found = [
        Finding("error", f"table {table} has no column {field.name}", add_column(table, field))
        for field in schema
        if field.name.lower() not in held
    ]
    for column in columns:
        if column.required and column.name.lower() not in given:
            message = f"column {column.name} of table {table} is NOT NULL without a default, and the rows lack it"
            found.append(
                Finding("error", message, f"select {column.name} into this sink, or give it a DEFAULT in the table")
            )
    if {key.lower() for key in options.keys} not in _unique_sets(connection, table, columns):
        message = f"table {table} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(options.keys)}"
        found.append(Finding("error", message, unique_index(table, options.keys)))
    if not found:  # SQLite itself has the last word: a view, a generated column
        try:
            statement = upsert(table, options.keys, schema.names)
            connection.execute(f"EXPLAIN {statement}", [None] * len(schema.names)).close()
        except sqlite3.OperationalError as error:
            if str(error).startswith("database is locked"):
                raise
            fix = f"name another table, or mend {table}"
            found.append(Finding("error", f"table {table} can't be upserted into: {error}", fix))
    yield from found
    for field in schema:
        if field.name.lower() in held:
            yield from _kept(table, field, held[field.name.lower()])


def _kept(table: str, field: pa.Field, column: _Column) -> Iterator[Finding]:
    """Warn of text that the table's column would turn into a number."""
    if not column.holds_numbers or storage(field.type) != "TEXT":
        return
    declared = f"column {column.name} of table {table} is declared {column.declared}"
    mend = f"declare {quoted(column.name)} TEXT in the table, or cast it to a number in the transform"
    if pa.types.is_decimal(field.type):
        if field.type.precision > _TEXT_DIGITS:
            yield Finding("error", f"{declared}: SQLite would keep {_TEXT_DIGITS} digits of {field.type}", mend)
    elif not pa.types.is_temporal(field.type):
        message = f"{declared}, the rows have text: SQLite would store '007' as the number 7"
        yield Finding("warning", message, mend)


def _columns(connection: sqlite3.Connection, table: str) -> list[_Column]:
    query = 'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid'
    rows = connection.execute(query, (table,)).fetchall()
    keys = [row for row in rows if row[4]]
    columns = []
    for name, declared, not_null, default, position, hidden in rows:
        is_rowid = len(keys) == 1 and position == 1 and declared.upper() == "INTEGER"  # SQLite gives it a value itself
        required = bool(not_null) and default is None and not hidden and not is_rowid
        columns.append(_Column(name, declared, required, position))
    return columns


def _unique_sets(connection: sqlite3.Connection, table: str, columns: Sequence[_Column]) -> list[set[str]]:
    """Give the sets of columns over which the table is unique; a partial index, or one over expressions, is none."""
    sets = [{column.name.lower() for column in columns if column.key_position}]
    indexes = connection.execute('SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table,))
    for (index,) in indexes.fetchall():
        names = [row[0] for row in connection.execute("SELECT name FROM pragma_index_info(?)", (index,))]
        if None not in names:
            sets.append({name.lower() for name in names})
    return sets
