"""The statements for a table of SQLite. Executors import this module: SQLAlchemy only where the driver calls."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.names import ascii_lower
from exactsink_idempotent_upsert.sqlite.values import column_type
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["Statements", "bound", "create_table", "listed"]

# Columns that can be set to their default: a generated one can't, and one of the primary key has none, but a number
# that SQLite draws.
_DEFAULTED = "SELECT name FROM pragma_table_xinfo(?) WHERE NOT hidden AND NOT pk ORDER BY cid"


@dataclass(frozen=True, slots=True)
class Statements:
    """What SQLite is to do to one table; `rest` are columns that mode replace sets to their default."""

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
        columns = {name: column_type(schema.field(name).type) or "NullType" for name in self.table.stored(schema.names)}
        guard = dict.fromkeys(GUARD, "BIGINT") if self.table.guarded else {}
        return create_table(self.table.name, {**columns, **guard}, self.table.keys)

    def with_column(self, name: str, kind: str | None) -> str:
        return f"ALTER TABLE {quoted(self.table.name)} ADD COLUMN {quoted(name)} {kind};"

    def with_unique_keys(self) -> str:
        """Return the statement that makes the keys an upsert's conflict target."""
        name = quoted("_".join(("exactsink", self.table.name, *self.table.keys)))
        return f"CREATE UNIQUE INDEX {name} ON {quoted(self.table.name)} ({listed(self.table.keys)});"

    def upsert(self, columns: Sequence[str], rows: str = "") -> str:
        """Return the INSERT .. ON CONFLICT for a row that is bound, or for `rows`: VALUES of several, or a SELECT.

        The table is named with its schema: a temporary table of the same name must not take its place. In a guarded
        table `columns` end with GUARD, and a row stays as it is when a later epoch or generation wrote it.
        """
        table = self.table
        rows = rows or f"VALUES {bound(len(columns))}"
        alias = "" if table.expressions else " AS held"  # expressions name the row there by the table's name
        into = f"main.{quoted(table.name)}{alias} ({listed(columns)})"
        return f"INSERT INTO {into} {rows} ON CONFLICT ({listed(table.keys)}) {self._action(columns)}"

    def changes_nothing(self, columns: Sequence[str]) -> bool:
        """Return whether a row stays as it is where its key is there."""
        return not (self.table.updated(columns) or self.rest or self.table.expressions)

    def _action(self, columns: Sequence[str]) -> str:
        if self.changes_nothing(columns):
            return "DO NOTHING"
        plain = (*self.table.updated(columns), *self.rest)
        sets = [f"{quoted(name)} = excluded.{quoted(name)}" for name in plain]
        sets += [f"{quoted(name)} = ({sql}\n)" for name, sql in self.table.expressions]
        conditions = " AND ".join(self._conditions())
        return f"DO UPDATE SET {', '.join(sets)}{conditions and f' WHERE {conditions}'}"

    def _conditions(self) -> Iterator[str]:
        """Return what must hold for a row to be set: no newer one stands there."""
        table = self.table
        held = quoted(table.name) if table.expressions else "held"
        if table.guarded:
            ours, given = (", ".join(f"{row}.{name}" for name in GUARD) for row in (held, "excluded"))
            if table.mode == "insert_if_absent":
                yield f"{held}.{GUARD[0]} = excluded.{GUARD[0]} AND {held}.{GUARD[1]} <= excluded.{GUARD[1]}"
            else:
                yield f"({held}.{GUARD[0]} IS NULL OR ({ours}) <= ({given}))"
        if table.version is not None:
            yield self.not_above(f"excluded.{quoted(table.version)}", f"{held}.")

    def not_above(self, given: str, row: str = "") -> str:
        """Return the condition that a row's version is not greater than the given one; NULL is the lowest."""
        version = f"{row}{quoted(self.table.version or '')}"
        return f"({version} IS NULL OR {version} <= {given} COLLATE BINARY)"

    def newer_than(self, epoch: int, generation: int) -> str:
        """Return the SELECT of the guard of rows that a later epoch or generation wrote."""
        guard = ", ".join(GUARD)
        return f"SELECT {guard} FROM main.{quoted(self.table.name)} WHERE ({guard}) > ({epoch}, {generation})"

    def by_key(self, what: str, collations: Mapping[str, str]) -> str:
        """Return `what` (DELETE, SELECT 1) for one key's row; `collations` are those by which an upsert meets it."""
        keys = self.table.keys
        equal = (f"{quoted(key)} = ? COLLATE {quoted(collations.get(ascii_lower(key), 'BINARY'))}" for key in keys)
        return f"{what} FROM main.{quoted(self.table.name)} WHERE {' AND '.join(equal)}"


def create_table(table: str, columns: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return the CREATE TABLE IF NOT EXISTS for columns and their types, with the keys as primary key."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import sqlite

    made = [sa.Column(name, getattr(sa.types, kind), primary_key=name in keys) for name, kind in columns.items()]
    statement = sa.schema.CreateTable(sa.Table(table, sa.MetaData(), *made), if_not_exists=True)
    return str(statement.compile(dialect=sqlite.dialect())).strip()


def bound(width: int) -> str:
    """Return the places of one row's values."""
    return f"({', '.join('?' * width)})"


def listed(names: Sequence[str]) -> str:
    """Quote names, with commas between them."""
    return ", ".join(map(quoted, names))
