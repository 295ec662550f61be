"""A table of SQLite and the Arrow rows for it: types, values, statements, and what keeps the two from fitting.

Text keeps order: timestamps and dates are ISO 8601 of a fixed width (UTC where the type has a zone), so that text
order is time order. Decimals are plain decimal text, of which no digit is lost. SQLite has no NaN: it becomes NULL.
Executors import this module: SQLAlchemy only where the driver calls.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.model import Finding

__all__ = ["Table", "column_type", "create_table", "findings", "plain", "sort_values", "stored_values", "unstorable"]

_STORED = {
    "BOOLEAN": ["boolean"],
    "BIGINT": ["integer"],
    "DOUBLE": ["floating"],
    "TEXT": ["string", "large_string", "string_view", "decimal", "timestamp", "date", "time"],
    "BLOB": ["binary", "large_binary", "binary_view", "fixed_size_binary"],
}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_FIRST, _END = -719_162 * _DAY, 2_932_897 * _DAY  # the years 1 to 9999: outside them ISO text loses its width
_TEXT_DIGITS = 15  # SQLite keeps that many of a decimal text that it puts into a column of numbers

# Name, declared type, and whether a row must bring a value; SQLite gives one itself to an INTEGER primary key.
_COLUMNS = """
    SELECT name, type, "notnull" AND dflt_value IS NULL AND NOT hidden AND NOT (pk AND upper(type) = 'INTEGER')
    FROM pragma_table_xinfo(?) ORDER BY cid
"""


@dataclass(frozen=True)
class Table:
    """One table as the options want it, and the statements for it."""

    name: str
    keys: tuple[str, ...]
    order_by: str | None
    create: bool

    def created_for(self, schema: pa.Schema) -> str:
        """Give the statement that makes the table for a frame, of types that preflight let pass."""
        columns = {field.name: column_type(field.type) or "NullType" for field in schema}
        return create_table(self.name, columns, self.keys)

    def with_column(self, field: pa.Field) -> str:
        return f"ALTER TABLE {_quoted(self.name)} ADD COLUMN {_quoted(field.name)} {column_type(field.type)};"

    def with_unique_keys(self) -> str:
        """Give the statement that makes the keys an upsert's conflict target."""
        name = _quoted("_".join(("exactsink", self.name, *self.keys)))
        return f"CREATE UNIQUE INDEX {name} ON {_quoted(self.name)} ({_listed(self.keys)});"

    def upsert(self, columns: Sequence[str], rows: str = "") -> str:
        """Give the INSERT .. ON CONFLICT for rows bound one by one, or for those of a SELECT.

        The table is named with its schema: a temporary table of the same name must not take its place.
        """
        rows = rows or f"VALUES ({', '.join('?' * len(columns))})"
        others = [name for name in columns if name not in self.keys]
        assignments = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in others)
        action = f"DO UPDATE SET {assignments}" if others else "DO NOTHING"
        into = f"main.{_quoted(self.name)} ({_listed(columns)})"
        return f"INSERT INTO {into} {rows} ON CONFLICT ({_listed(self.keys)}) {action}"


def create_table(table: str, columns: Mapping[str, str], keys: Sequence[str]) -> str:
    """Give the CREATE TABLE IF NOT EXISTS for columns and their types, with the keys as primary key."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import sqlite

    made = [sa.Column(name, getattr(sa.types, kind), primary_key=name in keys) for name, kind in columns.items()]
    statement = sa.schema.CreateTable(sa.Table(table, sa.MetaData(), *made), if_not_exists=True)
    return str(statement.compile(dialect=sqlite.dialect())).strip()


def column_type(type: pa.DataType) -> str | None:
    """Name the column type for values of an Arrow type; None when SQLite can't take them without loss."""
    if pa.types.is_dictionary(type):
        return column_type(type.value_type)
    if pa.types.is_uint64(type):
        return None
    fitting = (name for name, kinds in _STORED.items() if any(getattr(pa.types, f"is_{kind}")(type) for kind in kinds))
    return next(fitting, None)


def plain(column: pa.Array) -> pa.Array:
    """Decode a dictionary-encoded column, in which NULLs may hide in the dictionary; others stay as they are."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def stored_values(column: pa.Array) -> list[Any]:
    """Give a column's values as Python values that sqlite3 binds."""
    column = plain(column)
    kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_timestamp(kind):
        column = _iso(column)
    elif pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind):
        return [format(Decimal(v), "f") if v and "E" in v else v for v in values]
    return values


def sort_values(column: pa.Array) -> list[Any]:
    """Give values which SQLite orders as the column's own are ordered, NULL (and NaN) lowest.

    Only decimals differ from what is stored: their text is no order, so they become zero-padded numerals, moved so
    far up that none is negative.
    """
    values = stored_values(column)
    kind = plain(column).type
    if not pa.types.is_decimal(kind):
        return values
    digits = kind.precision + max(0, -kind.scale)
    return [None if v is None else f"{int(v.replace('.', '')) + 10**digits:0{digits + 1}d}" for v in values]


def unstorable(batch: pa.RecordBatch) -> str | None:
    """Say which value of a batch could not be stored as it is; None when all can."""
    try:
        batch.validate(full=True)  # broken UTF-8, which Spark lets through, or digits that the type doesn't have
    except pa.ArrowInvalid as error:
        return str(error)
    for name, column in zip(batch.schema.names, map(plain, batch.columns), strict=True):
        if column_type(column.type) is None:
            return f"column {name} is of type {column.type}, which SQLite can't hold"
        if _outside_years(column):
            return f"column {name} has a value outside the years 1 to 9999"
    return None


def _outside_years(column: pa.Array) -> bool:
    """Say whether a date or timestamp can't be shown as ISO text of a fixed width."""
    kind = column.type
    if pa.types.is_date32(kind):
        first, end = _FIRST // _DAY, _END // _DAY
    elif pa.types.is_date64(kind) or pa.types.is_timestamp(kind):
        unit = _PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]
        first, end = _FIRST * unit, _END * unit
    else:
        return False
    extremes = pc.min_max(column)
    least, greatest = extremes["min"].value, extremes["max"].value
    return least is not None and not first <= least <= greatest < end


def _iso(column: pa.Array) -> pa.Array:
    """Write timestamps as `YYYY-MM-DDTHH:MM:SS.ffffff`, nine digits for nanoseconds, with Z where there is a zone."""
    unit = "ns" if column.type.unit == "ns" else "us"
    zone = "UTC" if column.type.tz else None
    text = column.cast(pa.timestamp(unit, tz=column.type.tz)).cast(pa.timestamp(unit, tz=zone)).cast(pa.string())
    return pc.replace_substring(text, " ", "T", max_replacements=1)


def findings(
    table: Table, schema: pa.Schema, path: Path, connect: Callable[[], sqlite3.Connection]
) -> Iterator[Finding]:
    """Find what keeps such rows from being upserted. Changes nothing, and never creates the file."""
    first = [*_frame_problems(table, schema), *_place_problems(path)]
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
            if columns:
                yield from _table_problems(table, schema, connection, columns)
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
    for name in schema.names:
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
    given = {name.lower() for name in schema.names}
    missing = [field for field in schema if field.name.lower() not in declared]
    for field in missing:
        yield Finding("error", f"table {table.name} has no column {field.name}", table.with_column(field))
    for name, _, required in columns:
        if required and name.lower() not in given:
            message = f"column {name} of table {table.name} is NOT NULL without a default, and the rows lack it"
            yield Finding("error", message, f"select {name} into this sink, or give it a DEFAULT in the table")
    if missing:
        return
    try:  # SQLite itself has the last word: a conflict target, a view, a generated column
        connection.execute(f"EXPLAIN {table.upsert(schema.names)}", [None] * len(schema.names)).close()
    except sqlite3.OperationalError as error:
        if str(error).startswith("ON CONFLICT clause does not match"):
            message = f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(table.keys)}"
            yield Finding("error", message, table.with_unique_keys())
        else:
            message = f"table {table.name} can't be upserted into: {error}"
            yield Finding("error", message, f"name another table, or mend {table.name}")
    for field in schema:
        yield from _text_as_number(table.name, field, declared[field.name.lower()])


def _text_as_number(table: str, field: pa.Field, declared: str) -> Iterator[Finding]:
    """Warn of text that the column's affinity would turn into a number (SQLite's rules, in order)."""
    kind = declared.upper()
    keeps = not kind or ("INT" not in kind and any(part in kind for part in ("CHAR", "CLOB", "TEXT", "BLOB")))
    if keeps or column_type(field.type) != "TEXT" or pa.types.is_temporal(field.type):
        return
    found = f"column {field.name} of table {table} is declared {declared}"
    mend = f"declare {_quoted(field.name)} TEXT in the table, or cast it to a number in the transform"
    if not pa.types.is_decimal(field.type):
        yield Finding("warning", f"{found}, the rows have text: SQLite would store '007' as the number 7", mend)
    elif field.type.precision > _TEXT_DIGITS:
        yield Finding("error", f"{found}: SQLite would keep {_TEXT_DIGITS} digits of {field.type}", mend)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))
