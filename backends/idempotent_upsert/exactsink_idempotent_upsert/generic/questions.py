"""Check a table through portable SQL, as far as the standard's information schema goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.database import MARKER_TABLE
from exactsink_idempotent_upsert.generic.statements import EpochRows, column_type, columns_of, takes
from exactsink_idempotent_upsert.limits import family
from exactsink_idempotent_upsert.questions import SchemaQuestions, collated, forgotten, frame_findings, text, unordered
from exactsink_idempotent_upsert.table import Table

__all__ = ["GenericQuestions"]

_COLUMNS = "column_name, data_type, column_default, is_nullable, is_identity, is_generated"


@dataclass(frozen=True, slots=True)
class _Column:
    """One column as the database declares it. `names_a_row`: another value there identifies another row."""

    name: str
    kind: str
    filled: bool
    names_a_row: bool


class GenericQuestions(SchemaQuestions):
    """The answers of any database. A look at a view that it does not have rolls back.

    The dialects' reflection is not always up to its database: DuckDB's fails.
    """

    def __init__(self, connection: sa.Connection, table: Table, place: str) -> None:
        self._connection, self._table, self._place = connection, table, place
        self._schema = text(table.schema) if table.schema else None

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        try:
            return self._connection.exec_driver_sql(query).all()
        except sa.exc.DBAPIError:
            self._connection.rollback()
            return ()

    def frame(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return frame_findings(self._table, schema, "SQL", lambda kind: str(column_type(kind) or "") or None)

    def absent(self, schema: pa.Schema | None) -> Iterator[Finding]:
        if not self._table.create:
            yield Finding("error", f"table {self._table.name} does not exist", "make it, or set create = true")

    def there(self) -> Mapping[str, tuple[str, bool]]:
        found = self._declared
        return {
            name.lower(): (name, found[name.lower()].filled if name.lower() in found else True) for name in self._names
        }

    def added(self, name: str, schema: pa.Schema) -> str:
        return f"add column {name} to the table"

    def rest(self, schema: pa.Schema) -> Sequence[str]:
        if self._table.mode != "replace":
            return ()
        brought = {name.lower() for name in self._table.stored(schema.names)}
        return [column.name for key, column in self._declared.items() if not (key in brought or column.names_a_row)]

    def children(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        own = {name: columns for name, columns in self.keyed.items() if (name, "FOREIGN KEY") not in self.listed}
        both = "information_schema.table_constraints c JOIN information_schema.referential_constraints r"
        same = "c.constraint_name = r.constraint_name AND c.constraint_schema = r.constraint_schema"
        query = f"SELECT c.constraint_name, c.table_name, r.unique_constraint_name FROM {both} ON {same}"
        yield from ((name, child, own[unique]) for name, child, unique in self.rows(query) if unique in own)

    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        yield from forgotten(table)
        for field in schema if schema is not None else ():
            column = self._declared.get(field.name.lower())
            if column is not None and not takes(column.kind, field.type):
                message = f"column {field.name} of table {table.name} is {column.kind}, the rows have {field.type}"
                fix = f"widen the column, or cast {field.name} in the transform"
                yield Finding("error", f"{message}: it would be rounded, cut or refused", fix)
        if schema is None or not self.fits(schema):
            return
        if table.mode == "replace" and not self._declared:
            message = f"{self._place} has no view of the columns that identify a row of table {table.name}"
            yield Finding("error", message, 'set mode = "upsert"')
        names = filter(None, (table.version, *table.keys))
        if texts := [name for name in names if family(schema.field(name).type) == "text"]:
            rows = EpochRows(self._connection, table, schema)
            for name in (name for name in texts if not rows.compares_bytes(name)):
                yield unordered(name) if name == table.version else collated(table, name, "its collation")
            self._connection.rollback()

    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find duplicate keys.

        Otherwise warn, because the standard has no view of indexes, and this sink needs none.
        """
        names: list[sa.ColumnClause[Any]] = list(map(sa.column, self._table.keys))
        rows = sa.select(*names).select_from(sa.table(self._table.name, *names, schema=self._table.schema))
        doubled = rows.group_by(*names).having(sa.func.count() > 1).limit(1)
        if self.fits(schema) and self._connection.execute(doubled).first():
            keys = ", ".join(self._table.keys)
            message = f"table {self._table.name} has more than one row of a key, by its comparison of {keys}"
            yield Finding("error", message, "leave one row of each key in the table")
        if self.listed and not any(map(self.is_over_the_keys, self.keyed)):
            message = f"table {self._table.name} has no PRIMARY KEY or UNIQUE constraint over exactly the keys"
            fix = f"make a UNIQUE constraint or index over {', '.join(self._table.keys)}"
            yield Finding("warning", f"{message}: a program that inserts meanwhile could double a row", fix)

    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Run all statements of an epoch and its marker on no row, and roll back: the database has the last word."""
        if not self.fits(schema) or schema is None:
            return
        try:
            rest = self.rest(schema)
            if sa.inspect(self._connection).has_table(MARKER_TABLE):
                self._connection.exec_driver_sql(f"UPDATE {MARKER_TABLE} SET epoch = 0 WHERE 1 = 0")
            EpochRows(self._connection, self._table, schema, rest).apply()
        except sa.exc.DBAPIError as error:
            said = " ".join(str(error.orig).split())
            yield Finding("error", f"table {self._table.name} refuses upserts: {said}", "remove the cause of it")
        self._connection.rollback()

    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return iter(())  # the standard has no view of settings

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        yield from super().constraints(schema)
        if self._names:
            message = f"if table {self._table.name} refuses a row, the job stops after the decision"
            message += f": exactsink knows {self._place} by its SQL only"
            yield Finding("warning", message, "filter or cast such rows before this sink")

    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return iter(())  # the standard has no view of them

    @cached_property
    def _names(self) -> Sequence[str]:
        """The table's columns; none where it is not there."""
        there = sa.inspect(self._connection).has_table(self._table.name, self._table.schema)
        return columns_of(self._connection, self._table) if there else ()

    @cached_property
    def _declared(self) -> Mapping[str, _Column]:
        """The declared columns by name in lower case; empty if the database has no view of them."""
        primary = {column for name, kind in self.listed if kind == "PRIMARY KEY" for column in self.keyed.get(name, ())}
        found = {}
        for name, kind, default, nullable, identity, generated in self._of("columns", _COLUMNS):
            counts = identity == "YES" or "nextval(" in str(default or "").lower()
            own = counts or generated not in (None, "NEVER", "NO")
            filled = own or default is not None or nullable != "NO"
            found[name.lower()] = _Column(name, kind.upper(), filled, own or name in primary)
        return found
