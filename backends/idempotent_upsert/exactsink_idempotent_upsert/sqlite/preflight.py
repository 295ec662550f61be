"""What keeps rows out of a table of SQLite, found before the first one."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Finding
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.names import ascii_lower
from exactsink_idempotent_upsert.questions import frame_findings, keys_there
from exactsink_idempotent_upsert.sqlite.preflight_late import late_findings
from exactsink_idempotent_upsert.sqlite.statements import Statements
from exactsink_idempotent_upsert.sqlite.trial import filled_columns, silent_unique
from exactsink_idempotent_upsert.sqlite.values import column_type, stored_values
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["file_findings"]

_TEXT_DIGITS = 15  # SQLite keeps that many of a decimal text that it puts into a column of numbers

_TAKEN_AS_IT_IS = re.compile(r"(?:\b(?:coalesce|ifnull)\s*\(|[\w\s.,\")])*", re.IGNORECASE)  # names, and no arithmetic

# Name, declared type, and whether a row must bring a value; SQLite gives one itself to an INTEGER primary key.
_COLUMNS = """
    SELECT name, type, "notnull" AND dflt_value IS NULL AND NOT hidden AND NOT (pk AND upper(type) = 'INTEGER')
    FROM pragma_table_xinfo(?) ORDER BY cid
"""


def file_findings(
    path: Path, table: Table, schema: pa.Schema | None, connect: Callable[[], sqlite3.Connection]
) -> Iterator[Finding]:
    """Find what keeps such rows from being upserted, or without a schema rows of any columns.

    Changes nothing, and never creates the file.
    """
    first = [*frame_findings(table, schema, "SQLite", column_type, ascii_lower), *_place_problems(path)]
    first += _sums_of_texts(table, schema) if schema is not None else ()
    if first:
        yield from first
        return  # what follows would repeat it in other words
    columns: list[tuple[str, str, bool]] = []
    if path.exists():
        with closing(connect()) as connection:
            try:
                columns = connection.execute(_COLUMNS, (table.name,)).fetchall()
            except sqlite3.OperationalError:
                raise  # busy, say
            except sqlite3.DatabaseError as error:
                yield Finding("error", f"{path} is not a SQLite database: {error}", "name another file in `url`")
                return
            if columns and schema is None:
                yield from _target_problems(table, connection, [name for name, _, _ in columns])
            elif columns and schema is not None:
                stored = pa.schema([schema.field(name) for name in table.stored(schema.names)])
                yield from _table_problems(table, stored, connection, columns)
    if not columns and schema is not None and table.version is not None:
        version = schema.field(table.version)
        yield from _version_problems(table, version, column_type(version.type) or "")
    if not columns and not table.create:
        message = f"table {table.name} does not exist in {path}"
        made = "" if schema is None else f", or run: {Statements(table).created_for(schema)};"
        yield Finding("error", message, f"set create = true{made}")


def _sums_of_texts(table: Table, schema: pa.Schema) -> Iterator[Finding]:
    """Find what `set` computes of decimals: they are kept as text, with which SQLite reckons as with floats."""
    decimals = [field.name for field in schema if pa.types.is_decimal(field.type)]
    for column, sql in table.expressions:
        names = [
            name for name in decimals if name == column or re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE)
        ]
        if names and not _TAKEN_AS_IT_IS.fullmatch(sql):
            message = f"`set` computes {column} of {names[0]}, a {schema.field(names[0]).type}: SQLite would round it"
            fix = f"bring it as a whole number in the transform: cast({names[0]} * 100 AS BIGINT)"
            yield Finding("error", message, fix)


def _other_spellings(table: Table, schema: pa.Schema, connection: sqlite3.Connection) -> Iterator[Finding]:
    """Find keys that the table holds in other words than these rows would: each such value would be two rows."""
    for field in (schema.field(key) for key in table.keys):
        if not (pa.types.is_decimal(field.type) or pa.types.is_timestamp(field.type)):
            continue
        [spelt] = stored_values(pa.array([0], field.type))
        name, after = quoted(field.name), len(spelt) - spelt.find(".") - 1
        other = f"length({name}) - instr({name}, '.') <> {after}" if "." in spelt else f"instr({name}, '.')"
        query = f"SELECT {name} FROM {quoted(table.name)} WHERE typeof({name}) = 'text' AND {other} LIMIT 1"
        for (held,) in connection.execute(query):
            message = f"key {field.name} of table {table.name} holds {held}, and rows of {field.type} write {spelt}"
            fix = f"cast {field.name} to its earlier type in the transform, or rewrite the column as these rows are"
            yield Finding("error", f"{message}: one value would be two rows", fix)


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


def _target_problems(table: Table, connection: sqlite3.Connection, there: Sequence[str]) -> Iterator[Finding]:
    """Find what keeps rows of any columns out of the table."""
    lacking = list(keys_there(table, there, ascii_lower))
    yield from lacking
    if not lacking:
        yield from _statement_problems(table, connection, table.keys)
        yield from late_findings(table, connection, there)


def _table_problems(
    table: Table, schema: pa.Schema, connection: sqlite3.Connection, columns: Sequence[tuple[str, str, bool]]
) -> Iterator[Finding]:
    declared = {ascii_lower(name): declared for name, declared, _ in columns}
    names = [*schema.names, *(GUARD if table.guarded else ())]
    given = {ascii_lower(name) for name in names}
    missing = [field for field in schema if ascii_lower(field.name) not in declared]
    if table.add_columns:
        missing = [field for field in missing if field.name in table.keys]
    yield from _missing_columns(table, missing, [name for name in names[len(schema.names) :] if name not in declared])
    for name, _, required in columns:
        if required and ascii_lower(name) not in given:
            message = f"column {name} of table {table.name} is NOT NULL without a default, and the rows lack it"
            yield Finding("error", message, f"select {name} into this sink, or give it a DEFAULT in the table")
    if missing or any(name not in declared for name in names[len(schema.names) :]):
        return
    there = [name for name in names if ascii_lower(name) in declared]  # the others are added
    yield from _statement_problems(table, connection, there)
    for field in schema:
        if (kind := declared.get(ascii_lower(field.name))) is not None:
            yield from _text_as_number(table.name, field, kind)
            if field.name == table.version:
                yield from _version_problems(table, field, kind)
    yield from _other_spellings(table, schema, connection)
    yield from late_findings(table, connection, there)


def _missing_columns(table: Table, missing: Sequence[pa.Field], unguarded: Sequence[str]) -> Iterator[Finding]:
    statements = Statements(table)
    for field in missing:
        statement = statements.with_column(field.name, column_type(field.type))
        yield Finding("error", f"table {table.name} has no column {field.name}", statement)
    if unguarded:
        message = f"table {table.name} has no columns for whose write a row is, as strategy direct needs them"
        yield Finding("error", message, " ".join(statements.with_column(name, "BIGINT") for name in unguarded))


def _statement_problems(table: Table, connection: sqlite3.Connection, names: Sequence[str]) -> Iterator[Finding]:
    """Ask SQLite itself: it has the last word on a conflict target, a view, a generated column, `set`."""
    statements = Statements.of(connection, table, names)
    try:
        connection.execute(f"EXPLAIN {statements.upsert(names)}", [None] * len(names)).close()
    except sqlite3.OperationalError as error:
        if str(error).startswith("ON CONFLICT clause does not match"):
            message = f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(table.keys)}"
            yield Finding("error", message, statements.with_unique_keys())
        else:
            message = f"table {table.name} can't be upserted into: {error}"
            what = "correct `set`, or " if table.expressions else ""
            yield Finding("error", message, f"{what}name another table, or fix {table.name}")
        return
    for columns in silent_unique(connection, table, names):
        message = (
            f"UNIQUE ({columns}) has ON CONFLICT REPLACE or IGNORE: rows of other keys would vanish, or these rows"
        )
        yield Finding(
            "error", message, f"make table {table.name} anew without that clause, or key the sink by {columns}"
        )
    for name, default in filled_columns(connection, table, names).items():
        message = f"column {name} of table {table.name} is NOT NULL ON CONFLICT REPLACE"
        fix = f"coalesce({name}, ...) in the transform, or make table {table.name} anew without that clause"
        yield Finding("warning", f"{message}: where rows bring NULL, SQLite would store {default}, unreported", fix)


def _version_problems(table: Table, field: pa.Field, declared: str) -> Iterator[Finding]:
    """Find a version that the table would not keep in its own order."""
    kind, takes_text = column_type(field.type), _is_text(declared)
    fix = f"cast {field.name} to BIGINT or to a timestamp in the transform, and declare the column so"
    if pa.types.is_decimal(field.type):
        message = f"`version` names {field.name}, a {field.type}, which SQLite keeps as text, in another order"
        yield Finding("error", message, fix)
    elif kind != "BLOB" and declared and (kind == "TEXT") != takes_text:
        message = f"`version` names {field.name}: as {declared} it would be kept as another type, in another order"
        yield Finding("error", message, fix)


def _is_text(declared: str) -> bool:
    """Return whether a column keeps text, and numbers as text (SQLite's rules, in order)."""
    kind = declared.upper()
    return "INT" not in kind and any(part in kind for part in ("CHAR", "CLOB", "TEXT", "BLOB"))


def _text_as_number(table: str, field: pa.Field, declared: str) -> Iterator[Finding]:
    """Warn of text that the column's affinity would turn into a number (SQLite's rules, in order)."""
    if not declared or _is_text(declared) or column_type(field.type) != "TEXT" or pa.types.is_temporal(field.type):
        return
    found = f"column {field.name} of table {table} is declared {declared}"
    fix = f"declare {quoted(field.name)} TEXT in the table, or cast it to a number in the transform"
    if not pa.types.is_decimal(field.type):
        yield Finding("warning", f"{found}, the rows have text: SQLite would store '007' as the number 7", fix)
    elif field.type.precision > _TEXT_DIGITS:
        yield Finding("error", f"{found}: SQLite would keep {_TEXT_DIGITS} digits of {field.type}", fix)
