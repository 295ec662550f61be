"""SQL of SQLite: the statements for one table, and Arrow values in their stored form.

Timestamps and dates are ISO 8601 of a fixed width (UTC if the type has a zone), so that text order is time order.
Decimals are plain decimal text, which loses no digit. SQLite has no NaN, so it becomes NULL. Executors import this
module.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import plain
from exactsink.toolkit.sql import ascii_lower, quoted
from exactsink_idempotent_upsert.limits import family
from exactsink_idempotent_upsert.table import Table

__all__ = [
    *("Statements", "bound", "listed"),
    *("column_type", "other_spelling", "sort_values", "stored_values"),
]

_TYPES = dict.fromkeys(("text", "decimal", "timestamp", "date", "time"), "TEXT")
_TYPES |= {"boolean": "BOOLEAN", "whole": "BIGINT", "float": "DOUBLE", "bytes": "BLOB"}

_BINARY = " COLLATE BINARY"

# Columns that can be set to their default: a generated one can't, and one of the primary key has none, but a number
# that SQLite draws.
_DEFAULTED = "SELECT name FROM pragma_table_xinfo(?) WHERE NOT hidden AND NOT pk ORDER BY cid"

# Of a sum of whole numbers that leaves 64 bits, SQLite makes a float: an error instead, that of abs() of the least one.
_EXACT = (
    "CASE WHEN typeof({held}) <> 'real' AND typeof({sum}) = 'real' AND abs({sum}) >= 9223372036854775808.0"
    " THEN abs(-9223372036854775807 - (typeof({held}) <> 'real')) ELSE {sum} END"
)


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of SQLite for one table. `rest` are columns that mode replace sets to their default."""

    table: Table
    rest: tuple[str, ...] = ()

    @classmethod
    def of(cls, connection: sqlite3.Connection, table: Table, names: Iterable[str]) -> Statements:
        """Return the statements for rows of these columns."""
        if table.mode != "replace":
            return cls(table)
        brought = set(map(ascii_lower, names))
        there = (name for (name,) in connection.execute(_DEFAULTED, (table.name,)))
        return cls(table, tuple(name for name in there if ascii_lower(name) not in brought))

    def created_for(self, schema: pa.Schema) -> str:
        """Return the statement that makes the table for a frame, of types that preflight let pass."""
        columns = {name: column_type(schema.field(name).type) or "" for name in self.table.stored(schema.names)}
        return f"CREATE TABLE IF NOT EXISTS {quoted(self.table.name)} ({self.table.defined(columns)})"

    def with_column(self, name: str, kind: str | None) -> str:
        return f"ALTER TABLE {quoted(self.table.name)} ADD COLUMN {quoted(name)} {kind};"

    def with_unique_keys(self) -> str:
        """Return the statement that makes the keys an upsert's conflict target."""
        name = quoted("_".join(("exactsink", self.table.name, *self.table.keys)))
        return f"CREATE UNIQUE INDEX {name} ON {quoted(self.table.name)} ({listed(self.table.keys)});"

    def insert(self, columns: Sequence[str], rows: str = "", alias: str = "") -> str:
        """Return the INSERT of a row that is bound, or of `rows`: VALUES of several, or a SELECT.

        The table is named with its schema: a temporary table of the same name must not take its place.
        """
        into = f"main.{quoted(self.table.name)}{alias} ({listed(columns)})"
        return f"INSERT INTO {into} {rows or f'VALUES {bound(len(columns))}'}"

    def upsert(self, columns: Sequence[str], rows: str = "") -> str:
        """Return the INSERT .. ON CONFLICT.

        In a guarded table `columns` end with GUARD, and a row stays unchanged if a later epoch or generation wrote it.
        """
        table = self.table
        alias = "" if table.expressions else " AS held"  # expressions name the row there by the table's name
        conflict = f"ON CONFLICT ({listed(table.keys)})"
        return f"{self.insert(columns, rows, alias)} {conflict} {self._action(columns)}"

    def changed(self, columns: Iterable[str]) -> list[str]:
        """Name the columns that are set where the key is there."""
        return [*self.table.updated(columns), *self.rest, *dict(self.table.expressions)]

    def _action(self, columns: Sequence[str]) -> str:
        if not self.changed(columns):
            return "DO NOTHING"
        sets = [f"{quoted(name)} = excluded.{quoted(name)}" for name in (*self.table.updated(columns), *self.rest)]
        for name, sql in self.table.expressions:
            sets.append(f"{quoted(name)} = " + _EXACT.format(held=quoted(self.table.name, name), sum=f"({sql}\n)"))
        held = quoted(self.table.name) if self.table.expressions else "held"
        conditions = " AND ".join(self.table.unless_newer(held, "excluded", _BINARY))
        return f"DO UPDATE SET {', '.join(sets)}{conditions and f' WHERE {conditions}'}"

    def not_above(self, given: str) -> str:
        """Return the condition that a row's version is not greater than the given one."""
        return self.table.not_above("", given + _BINARY)

    def by_key(self, what: str, collations: Mapping[str, str]) -> str:
        """Return `what` (DELETE, SELECT 1) for one key's row. `collations` are those by which an upsert matches it."""
        keys = self.table.keys
        equal = (f"{quoted(key)} = ? COLLATE {quoted(collations.get(ascii_lower(key), 'BINARY'))}" for key in keys)
        return f"{what} FROM main.{quoted(self.table.name)} WHERE {' AND '.join(equal)}"


def bound(width: int) -> str:
    """Return the places of one row's values."""
    return f"({', '.join('?' * width)})"


def listed(names: Iterable[str]) -> str:
    """Quote names, with commas between them."""
    return ", ".join(map(quoted, names))


def column_type(type: pa.DataType) -> str | None:
    """Name the column type for values of an Arrow type; None when SQLite can't take them without loss."""
    return _TYPES.get(family(type))


def stored_values(column: pa.Array) -> list[Any]:
    """Return a column's values as Python values that sqlite3 binds."""
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
    """Return values that SQLite sorts in the column's own order, NULL (and NaN) lowest.

    Only decimals differ from their stored form, whose text has another order. They become zero-padded numerals, shifted
    so that none is negative.
    """
    values = stored_values(column)
    kind = plain(column).type
    if not pa.types.is_decimal(kind):
        return values
    digits = kind.precision + max(0, -kind.scale)
    return [None if v is None else f"{int(v.replace('.', '')) + 10**digits:0{digits + 1}d}" for v in values]


def other_spelling(kind: pa.DataType, column: str) -> str:
    """Return the condition that a column's value is not a time or decimal in the stored form of this type."""
    if not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)):
        return "false"
    [zero] = stored_values(pa.array([0], kind))
    if pa.types.is_temporal(kind):
        return f"{column} NOT GLOB '{re.sub('[0-9]', '[0-9]', zero)}'"
    after, body = zero[1:].replace("0", "[0-9]"), f"ltrim({column}, '-')"
    right = f"({body} GLOB '[1-9]*{after}' OR {body} GLOB '0{after}') AND {column} <> '-{zero}'"
    return f"NOT ({right}) OR {body} GLOB '*[^0-9{zero[1:2]}]*'"


def _iso(column: pa.Array) -> pa.Array:
    """Write timestamps as `YYYY-MM-DDTHH:MM:SS.ffffff`, nine digits for nanoseconds, with Z where there is a zone."""
    unit = "ns" if column.type.unit == "ns" else "us"
    zone = "UTC" if column.type.tz else None
    text = column.cast(pa.timestamp(unit, tz=column.type.tz)).cast(pa.timestamp(unit, tz=zone)).cast(pa.string())
    return pc.replace_substring(text, " ", "T", max_replacements=1)
