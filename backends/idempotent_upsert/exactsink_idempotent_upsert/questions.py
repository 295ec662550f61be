"""The checks of a sink's table that every database implements, before the first row.

`Questions` has a method for each, so that no database can leave one out. A start and `check` call them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["QUESTIONS", "Questions", "SchemaQuestions", "TableQuestions", "collated", "forgotten", "frame_findings"]
__all__ += ["keys_there", "named_findings", "text", "unordered"]

_STOPS = ("stops the job after the decision", "fails the epoch before it is decided")


class Questions(ABC):
    """The checks of one database, through one connection. They change nothing.

    `schema` is that of the rows, or None if it is not known yet. An error means that rows certainly don't fit, a
    warning that they may not. A method that does not matter to a database returns `()`, and a comment says why.
    """

    @abstractmethod
    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find columns that the rows lack, columns that the table lacks, and columns that no statement may set."""

    @abstractmethod
    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find types that lose something of a value, and orders of keys and versions that are not the rows' own."""

    @abstractmethod
    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find that no unique index is over exactly the keys."""

    @abstractmethod
    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find the privileges that a statement of a commit lacks, by mode; the fix is the GRANT."""

    @abstractmethod
    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find settings by which a committed epoch does not survive a crash."""

    @abstractmethod
    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find triggers and rules, of every event that a commit causes, that may drop, change or refuse a row."""

    @abstractmethod
    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find other unique, exclusion, temporal and check constraints that a decided row may break."""

    @abstractmethod
    def references(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find foreign keys from and to the table that a row, or a delete, may break."""

    @abstractmethod
    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find partitions that would be missing for a row, or that no transaction covers."""

    def findings(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Run all checks."""
        for question in QUESTIONS:
            yield from getattr(self, question)(schema)


QUESTIONS = tuple(name for name in vars(Questions) if name in Questions.__abstractmethods__)
"""The methods of `Questions`, in the order in which they are called."""


def keys_there(table: Table, there: Collection[str], fold: Callable[[str], str] = str.lower) -> Iterator[Finding]:
    """Find keys that are not columns of the table, if the rows are not known yet. `fold` as below."""
    known = set(map(fold, there))
    for key in table.keys:
        if fold(key) not in known:
            message = f"`keys` names column {key}, which table {table.name} lacks: it has {', '.join(there)}"
            yield Finding("error", message, f"add {key} to table {table.name}, or correct `keys`")


def named_findings(table: Table, schema: pa.Schema) -> Iterator[Finding]:
    """Find columns that the options name and a frame lacks."""
    single = {"order_by": table.order_by, "version": table.version}
    named = {"keys": table.keys, "update_columns": table.update_columns or ()}
    for option, names in (named | {option: (name,) for option, name in single.items() if name is not None}).items():
        for name in names:
            if name not in schema.names:
                message = f"`{option}` names column {name}, which the rows lack: they have {', '.join(schema.names)}"
                yield Finding("error", message, f"select {name} into this sink, or correct `{option}`")


def forgotten(table: Table) -> Iterator[Finding]:
    """Find that a row which is deleted takes its version along."""
    if table.version is not None and table.deletes:
        message = "`delete_when` deletes a row with its version, so an older row that comes later is inserted"
        yield Finding("warning", message, "keep deleted rows, with a column that says so, if older rows may come later")


def unordered(version: str, altered: str = "") -> Finding:
    """Find that a table has an order of its own for a text; `altered` is the statement that gives it the rows' one."""
    message = f"`version` names {version}, a text that the table does not compare by its bytes"
    fix = f"{altered and altered + ' or '}cast {version} to a number or a timestamp in the transform"
    return Finding("error", message, fix)


def collated(table: Table, key: str, by: str) -> Finding:
    """Find that texts which differ are one key: whatever cuts rows into tasks compares bytes."""
    wins = "any of them may win" if table.guarded else "that of the later partition wins"
    message = f"table {table.name} compares key {key} by {by}: texts of one key may come from two tasks, and {wins}"
    fix = f"write lower({key}), or the like, in the transform, and make the column one that compares bytes"
    return Finding("error" if table.guarded else "warning", message, fix)


def frame_findings(
    table: Table,
    schema: pa.Schema | None,
    product: str,
    column_type: Callable[[pa.DataType], str | None],
    fold: Callable[[str], str] = str.lower,
) -> Iterator[Finding]:
    """Find why a frame fits no table of this product, whose types `column_type` names; none without a frame.

    `fold` maps names that mean the same column to one name.
    """
    if schema is None:
        return
    yield from named_findings(table, schema)
    seen: dict[str, str] = {}
    for name in (*schema.names, *(GUARD if table.guarded else ())):
        if fold(name) in seen:
            message = f"columns {seen[fold(name)]} and {name} are one column to {product}"
            yield Finding("error", message, f"rename one of them: withColumnRenamed({name!r}, ...)")
        seen[fold(name)] = name
    for field in schema:
        if column_type(field.type) is None:
            expression = f"to_json({field.name})" if pa.types.is_nested(field.type) else f"cast({field.name} AS STRING)"
            message = f"column {field.name} is of type {field.type}, which {product} can't hold"
            yield Finding("error", message, f"convert it in the transform: {expression} AS {field.name}")


class TableQuestions(Questions):
    """Compare a table's columns with the rows', for all databases but PostgreSQL, whose own backend does it.

    `fold` maps names that mean the same column to one name.
    """

    _table: Table
    fold: Callable[[str], str] = staticmethod(str.lower)

    @abstractmethod
    def frame(self, schema: pa.Schema | None) -> Iterable[Finding]:
        """Find why such rows fit no table."""

    @abstractmethod
    def absent(self, schema: pa.Schema | None) -> Iterable[Finding]:
        """Find that the table is not there, or is none."""

    @abstractmethod
    def there(self) -> Mapping[str, tuple[str, bool]]:
        """Return the table's columns by folded name, and whether each has a value where a row brings none."""

    @abstractmethod
    def added(self, name: str, schema: pa.Schema) -> str:
        """Return how a column that the table lacks is added."""

    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table, there = self._table, self.there()
        found = [*self.frame(schema)] or ([] if there else [*self.absent(schema)])
        if found or not there:
            yield from found  # the next checks would repeat it in other words
            return
        if schema is None:
            yield from keys_there(table, [name for name, _ in there.values()], self.fold)
            return
        for name in self.lacking(schema):
            message = f"table {table.name} has no column {name}{', which strategy direct needs' * (name in GUARD)}"
            yield Finding("error", message, self.added(name, schema))
        given = set(map(self.fold, [*table.stored(schema.names), *self.guard]))
        for key, (name, filled) in there.items():
            if key not in given and not filled:
                message = f"column {name} of table {table.name} is NOT NULL without a default, and the rows lack it"
                yield Finding("error", message, f"select {name} into this sink, or give it a DEFAULT in the table")

    def lacking(self, schema: pa.Schema) -> list[str]:
        """Name the columns that the table lacks, and that are not added."""
        table = self._table
        needed = [name for name in table.stored(schema.names) if not table.add_columns or name in table.keys]
        return [name for name in (*needed, *self.guard) if self.fold(name) not in self.there()]

    @property
    def guard(self) -> tuple[str, ...]:
        return GUARD if self._table.guarded else ()

    def fits(self, schema: pa.Schema | None) -> bool:
        return bool(self.there()) and not any(found.severity == "error" for found in self.columns(schema))


class SchemaQuestions(TableQuestions):
    """The answers of a database that has an information schema, or some views of one.

    `_schema` is the table's, as SQL has it; None for any.
    """

    _schema: str | None = None

    @abstractmethod
    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """Run a query. Return no rows if the database lacks its subject."""

    @abstractmethod
    def rest(self, schema: pa.Schema) -> Sequence[str]:
        """Name the columns that mode replace sets to their default: none that names a row."""

    @abstractmethod
    def children(self) -> Iterable[tuple[str, str, Sequence[str]]]:
        """Return foreign keys to the table: each one's name, its table, and the columns that it refers to."""

    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Only those are seen that the role may see."""
        updates = self._table.guarded or self._table.mode != "insert_if_absent"
        events = ["INSERT", *(["UPDATE"] if updates else []), *(["DELETE"] if self._table.deletes else [])]
        of = ("event_object_schema", "event_object_table")
        for name, event in self._of("triggers", "trigger_name, event_manipulation", of):
            if event in events:
                message = f"trigger {name} of table {self._table.name} ON {event} may change a row, or refuse it"
                yield self.late(message, f"check that {name} does neither")

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """NOT NULL belongs to the columns, though some databases list it as a check."""
        for name, kind in self.listed:
            other = kind in ("UNIQUE", "PRIMARY KEY") and not self.is_over_the_keys(name)
            if other or (kind == "CHECK" and not name.endswith("_not_null")):
                message = f"{'unique index' if other else kind} {name} of table {self._table.name} may refuse a row"
                yield self.late(message, f"filter such rows before this sink{self.dropped(name) if other else ''}")

    def references(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        for name in (name for name, kind in self.listed if kind == "FOREIGN KEY"):
            message = f"FOREIGN KEY {name} of table {table.name} may refuse a row"
            yield self.late(
                message, 'if a sink of this job writes the other table, set after = "..." (its name) on this one'
            )
        stored = [] if schema is None else table.stored(schema.names)
        changed = {*table.updated(stored), *dict(table.expressions), *(self.rest(schema) if schema is not None else ())}
        for name, child, columns in self.children():
            message = f"FOREIGN KEY {name} of table {child} to {table.name} may refuse"
            if table.deletes:
                yield self.late(f"{message} a delete", f"delete from {child} first: exactsink sees no cascade")
            if moved := sorted({one.lower() for one in changed} & {one.lower() for one in columns}):
                fix = f"leave {', '.join(moved)} out of update_columns"
                yield self.late(f"{message} a change of {', '.join(moved)}", fix)

    def late(self, message: str, fix: str) -> Finding:
        """Return a warning of a problem that may end an epoch; with strategy direct before the decision."""
        return Finding("warning", f"{message}, which {_STOPS[self._table.guarded]}", fix)

    def dropped(self, index: str) -> str:
        """Return the other way out of a unique index: none, unless the database knows it."""
        return ""

    @cached_property
    def listed(self) -> Sequence[Sequence[str]]:
        """The table's constraints: names and kinds."""
        return self._of("table_constraints", "constraint_name, constraint_type")

    @cached_property
    def keyed(self) -> Mapping[str, Sequence[str]]:
        """The columns of the table's keys, by constraint."""
        found: dict[str, list[str]] = {}
        for name, column in self._of("key_column_usage", "constraint_name, column_name"):
            found.setdefault(name, []).append(column)
        return found

    def is_over_the_keys(self, constraint: str) -> bool:
        columns = {name.lower() for name in self.keyed.get(constraint, ())}
        return columns == {key.lower() for key in self._table.keys}

    def _of(
        self, view: str, columns: str, of: tuple[str, str] = ("table_schema", "table_name"), more: str = ""
    ) -> Sequence[Sequence[Any]]:
        """Return rows of a view about the table."""
        query = f"SELECT {columns} FROM information_schema.{view} WHERE {of[1]} = {text(self._table.name)}"
        return self.rows(f"{query}{f' AND {of[0]} = {self._schema}' if self._schema else ''}{more} ORDER BY 1, 2")


def text(value: str) -> str:
    """Return a text as SQL has it; where a backslash means itself."""
    return "'" + value.replace("'", "''") + "'"
