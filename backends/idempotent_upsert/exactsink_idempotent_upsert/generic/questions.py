"""The questions about a table that is reached by portable SQL: what the standard's information schema has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.generic.rows import EpochRows, column_type, columns_of, takes
from exactsink_idempotent_upsert.questions import Questions, frame_findings, keys_there
from exactsink_idempotent_upsert.table import Table

__all__ = ["Column", "GenericQuestions", "columns_declared"]

_COLUMNS = ("column_name", "data_type", "column_default", "is_nullable", "is_identity", "is_generated")
_LATE = "may refuse a row only when a decided epoch is applied, which stops the job"


@dataclass(frozen=True, slots=True)
class Column:
    """One column as the database declares it; `names_a_row` says that another value would be another row's."""

    name: str
    kind: str
    required: bool
    default: bool
    names_a_row: bool


def columns_declared(connection: sa.Connection, table: Table) -> Mapping[str, Column]:
    """Return the table's columns by name in lower case; none where the database has no information schema.

    The dialects' reflection is not always up to its database: DuckDB's fails, and breaks the transaction.
    """
    primary = {name for kind, _, names in _constraints(connection, table) if kind == "PRIMARY KEY" for name in names}
    found = {}
    for name, kind, default, nullable, identity, generated in _of(connection, table, "columns", *_COLUMNS):
        counts = identity == "YES" or "nextval(" in str(default or "").lower()
        own = counts or generated not in (None, "NEVER", "NO")
        filled = own or default is not None
        found[name.lower()] = Column(name, kind.upper(), nullable == "NO", filled, own or name in primary)
    return found


def _of(
    connection: sa.Connection, table: Table, view: str, *columns: str, of: str = "table"
) -> Sequence[Sequence[Any]]:
    """Return what a view of the information schema has of the table, whose name is in columns that begin with `of`."""
    named = sa.table(view, *map(sa.column, (*columns, f"{of}_name", f"{of}_schema")), schema="information_schema").c
    query = sa.select(*(named[name] for name in columns)).where(named[f"{of}_name"] == table.name)
    if table.schema is not None:
        query = query.where(named[f"{of}_schema"] == table.schema)
    return _rows(connection, query)


def _constraints(connection: sa.Connection, table: Table) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return the table's constraints: the kind, the name, and the key's columns."""
    keyed: dict[str, list[str]] = {}
    for name, column in _of(connection, table, "key_column_usage", "constraint_name", "column_name"):
        keyed.setdefault(name, []).append(column)
    found = _of(connection, table, "table_constraints", "constraint_type", "constraint_name")
    return [(kind, name, keyed.get(name, [])) for kind, name in found]


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> Sequence[Sequence[Any]]:
    try:
        return connection.execute(query).all()
    except sa.exc.DBAPIError:
        connection.rollback()
        return ()


class GenericQuestions(Questions):
    """The answers of any database. A look at its catalog that fails, as it has no such view, rolls back."""

    def __init__(self, connection: sa.Connection, table: Table, place: str, later: Callable[[], None]) -> None:
        self._connection, self._table, self._place, self._later = connection, table, place, later

    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        found = list(frame_findings(table, schema, "SQL", lambda kind: str(column_type(kind) or "") or None))
        yield from found
        if found:
            return
        if not self._there:
            if not table.create:
                yield Finding("error", f"table {table.name} does not exist", "make it, or set create = true")
            return
        if schema is None:
            yield from keys_there(table, self._there)
            return
        there, brought = {name.lower() for name in self._there}, {name.lower() for name in table.stored(schema.names)}
        for name in table.stored(schema.names):
            if name.lower() not in there:
                yield Finding("error", f"table {table.name} has no column {name}", "add it to the table")
        for key, column in self._declared.items():
            if key not in brought and column.required and not column.default:
                message = f"column {column.name} of table {table.name} is NOT NULL without a default"
                fix = f"select {column.name} into this sink, or give it a DEFAULT in the table"
                yield Finding("error", f"{message}, and the rows lack it", fix)
        if table.mode == "replace" and not self._declared:
            message = (
                f"{self._place} has no information schema that shows which columns of table {table.name} name a row"
            )
            yield Finding("error", message, 'set mode = "upsert", which leaves the other columns as they are')

    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find columns that would round, cut or refuse some values, and versions in another order than rows'."""
        for field in schema if schema is not None else ():
            column = self._declared.get(field.name.lower())
            if column is not None and not takes(column.kind, field.type):
                message = (
                    f"column {field.name} of table {self._table.name} is {column.kind}, the rows have {field.type}"
                )
                fix = f"widen the column, or cast {field.name} in the transform"
                yield Finding("error", f"{message}: it would be rounded, cut or refused", fix)
        version = self._table.version
        if self._fits(schema) and version is not None and schema is not None and _is_text(schema.field(version).type):
            if not EpochRows(self._connection, self._table, schema).orders_bytes(version):
                message = f"`version` names {version}, a text, which the table compares otherwise than by its bytes"
                yield Finding("error", message, f"cast {version} to a number or a timestamp in the transform")
            self._connection.rollback()

    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """A warning only: of indexes the standard has no view, and the statements need none."""
        keys = {key.lower() for key in self._table.keys}
        unique = [{name.lower() for name in names} for _, _, names in self._unique]
        if self._declared and keys not in unique:
            message = f"table {self._table.name}: no PRIMARY KEY or UNIQUE constraint is over exactly the keys"
            fix = f"make a UNIQUE constraint or index over {', '.join(self._table.keys)}"
            yield Finding("warning", f"{message}: a program that inserts meanwhile could double a row", fix)

    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Run all statements of an epoch and its marker on no row, and roll back: the database has the last word."""
        if not self._fits(schema) or schema is None:
            return
        try:
            rest = self.rest(schema)
            self._later()
            EpochRows(self._connection, self._table, schema, rest).apply()
        except sa.exc.DBAPIError as error:
            said = " ".join(str(error.orig).split())
            yield Finding("error", f"table {self._table.name} can't be upserted into: {said}", "fix what it says")
        self._connection.rollback()

    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return iter(())  # no view of the standard has it: each database names its settings otherwise

    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        names = ("trigger_name", "event_manipulation")
        for name, event in _of(self._connection, self._table, "triggers", *names, of="event_object"):
            message = f"trigger {name} ON {event} of table {self._table.name} may drop or change a row, and {_LATE}"
            yield Finding("warning", message, "see that it does none of that")

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        keys = {key.lower() for key in self._table.keys}
        for kind, name, names in self._constraints:
            checks = kind == "CHECK" and not name.endswith("_not_null")  # those that are no constraint of their own
            if checks or (kind == "UNIQUE" and {one.lower() for one in names} != keys):
                message = f"{kind} {name} of table {self._table.name} {_LATE}"
                yield Finding("warning", message, "filter such rows before this sink")
        if self._there:
            message = f"what columns and indexes of table {self._table.name} refuse stops the job after the decision"
            fix = "filter or cast such rows before this sink"
            yield Finding("warning", f"{message}: {self._place} is known by its SQL only", fix)

    def references(self, schema: pa.Schema | None) -> Iterator[Finding]:
        for kind, name, _ in self._constraints:
            if kind == "FOREIGN KEY":
                message = f"foreign key {name} of table {self._table.name} {_LATE}"
                yield Finding("warning", message, "let this sink commit `after` the one that writes the other table")
        for child, name in self._children() if self._table.deletes or self._table.mode != "insert_if_absent" else ():
            message = f"foreign key {name} of table {child} to {self._table.name} {_LATE}"
            yield Finding("warning", message, f"see that {child} names no row that this sink changes or deletes")

    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return iter(())  # no view of the standard shows partitions

    def rest(self, schema: pa.Schema) -> Sequence[str]:
        """Name the columns that mode replace sets to their default: none that names a row."""
        if self._table.mode != "replace":
            return ()
        brought = {name.lower() for name in self._table.stored(schema.names)}
        return [c.name for key, c in self._declared.items() if key not in brought and not c.names_a_row]

    def _children(self) -> Iterator[tuple[str, str]]:
        own = {name for _, name, _ in self._unique}
        view = sa.table(
            "referential_constraints",
            *map(sa.column, ("constraint_name", "constraint_schema", "unique_constraint_name")),
            schema="information_schema",
        ).c
        of = sa.table(
            "table_constraints",
            *map(sa.column, ("constraint_name", "constraint_schema", "table_name")),
            schema="information_schema",
        ).c
        query = sa.select(of.table_name, of.constraint_name, view.unique_constraint_name).where(
            of.constraint_name == view.constraint_name, of.constraint_schema == view.constraint_schema
        )
        yield from ((child, name) for child, name, unique in _rows(self._connection, query) if unique in own)

    def _fits(self, schema: pa.Schema | None) -> bool:
        return bool(self._there) and not any(finding.severity == "error" for finding in self.columns(schema))

    @cached_property
    def _there(self) -> Sequence[str]:
        """The table's columns; none where it is not there."""
        there = sa.inspect(self._connection).has_table(self._table.name, self._table.schema)
        return columns_of(self._connection, self._table) if there else ()

    @cached_property
    def _declared(self) -> Mapping[str, Column]:
        return columns_declared(self._connection, self._table)

    @cached_property
    def _constraints(self) -> Sequence[tuple[str, str, Sequence[str]]]:
        return _constraints(self._connection, self._table)

    @property
    def _unique(self) -> Sequence[tuple[str, str, Sequence[str]]]:
        return [found for found in self._constraints if found[0] in ("PRIMARY KEY", "UNIQUE")]


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any((pa.types.is_string(kind), pa.types.is_large_string(kind), pa.types.is_string_view(kind)))
