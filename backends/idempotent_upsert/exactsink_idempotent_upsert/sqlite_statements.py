"""The statements for a table of SQLite. Executors import this module: SQLAlchemy only where the driver calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.sqlite_values import column_type
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["Statements", "bound", "create_table"]


@dataclass(frozen=True, slots=True)
class Statements:
    """What SQLite is to do to one table."""

    table: Table

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
        return f"CREATE UNIQUE INDEX {name} ON {quoted(self.table.name)} ({_listed(self.table.keys)});"

    def upsert(self, columns: Sequence[str], rows: str = "") -> str:
        """Return the INSERT .. ON CONFLICT for a row that is bound, or for `rows`: VALUES of several, or a SELECT.

        The table is named with its schema: a temporary table of the same name must not take its place. In a guarded
        table `columns` end with GUARD, and a row stays as it is when a later epoch or generation wrote it.
        """
        table = self.table
        rows = rows or f"VALUES {bound(len(columns))}"
        others = [name for name in columns if name not in table.keys]
        assignments = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
        action = f"DO UPDATE SET {assignments}" if others else "DO NOTHING"
        into = f"main.{quoted(table.name)} AS held ({_listed(columns)})"
        return f"INSERT INTO {into} {rows} ON CONFLICT ({_listed(table.keys)}) {action}{self._guard()}"

    def _guard(self) -> str:
        if not self.table.guarded:
            return ""
        held, given = (", ".join(f"{row}.{name}" for name in GUARD) for row in ("held", "excluded"))
        return f" WHERE held.{GUARD[0]} IS NULL OR ({held}) <= ({given})"

    def newer_than(self, epoch: int, generation: int) -> str:
        """Return the SELECT of the guard of rows that a later epoch or generation wrote."""
        guard = ", ".join(GUARD)
        return f"SELECT {guard} FROM main.{quoted(self.table.name)} WHERE ({guard}) > ({epoch}, {generation})"

    def by_key(self, what: str, collations: Mapping[str, str]) -> str:
        """Return `what` (DELETE, SELECT 1) for one key's row; `collations` are those by which an upsert meets it."""
        keys = self.table.keys
        equal = (f"{quoted(key)} = ? COLLATE {quoted(collations.get(key.lower(), 'BINARY'))}" for key in keys)
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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
