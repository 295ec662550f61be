"""The questions that the standard's information schema answers, and the order in which columns are looked at."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.questions import Questions, keys_there
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["SchemaQuestions"]

_STOPS = ("stops the job after the decision", "fails the epoch before it is decided")


class SchemaQuestions(Questions):
    """The answers of a database that has an information schema, or some views of one.

    `_schema` is the table's, as SQL has it; None for any.
    """

    _table: Table
    _schema: str | None = None

    @abstractmethod
    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """Run a query. Return nothing where the database does not have what it is about."""

    @abstractmethod
    def frame(self, schema: pa.Schema | None) -> Iterable[Finding]:
        """Find what keeps such rows out of any table."""

    @abstractmethod
    def absent(self, schema: pa.Schema | None) -> Iterable[Finding]:
        """Find that the table is not there, or is none."""

    @abstractmethod
    def there(self) -> Mapping[str, tuple[str, bool]]:
        """Return the table's columns by name in lower case, and whether each has a value where a row brings none."""

    @abstractmethod
    def added(self, name: str, schema: pa.Schema) -> str:
        """Return how a column that the table lacks comes to it."""

    @abstractmethod
    def rest(self, schema: pa.Schema) -> Sequence[str]:
        """Name the columns that mode replace sets to their default: none that names a row."""

    @abstractmethod
    def children(self) -> Iterable[tuple[str, str, Sequence[str]]]:
        """Return foreign keys to the table: each one's name, its table, and the columns that it refers to."""

    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table, there = self._table, self.there()
        found = [*self.frame(schema)] or ([] if there else [*self.absent(schema)])
        if found or not there:
            yield from found  # what follows would repeat it in other words
            return
        if schema is None:
            yield from keys_there(table, [name for name, _ in there.values()])
            return
        names = [*table.stored(schema.names), *(GUARD if table.guarded else ())]
        for name in names if not table.add_columns else (GUARD if table.guarded else ()):
            if name.lower() not in there:
                message = f"table {table.name} has no column {name}{', as strategy direct needs it' * (name in GUARD)}"
                yield Finding("error", message, self.added(name, schema))
        given = {name.lower() for name in names}
        for key, (name, filled) in there.items():
            if key not in given and not filled:
                message = f"column {name} of table {table.name} is NOT NULL without a default, and the rows lack it"
                yield Finding("error", message, f"select {name} into this sink, or give it a DEFAULT in the table")

    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Only those are seen that the role may see."""
        updates = self._table.guarded or self._table.mode != "insert_if_absent"
        events = ["INSERT", *(["UPDATE"] if updates else []), *(["DELETE"] if self._table.deletes else [])]
        of = ("event_object_schema", "event_object_table")
        for name, event in self._of("triggers", "trigger_name, event_manipulation", of):
            if event in events:
                message = f"trigger {name} of table {self._table.name} ON {event} may change a row, or refuse it"
                yield self.late(message, "see that it does neither")

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """NOT NULL is the columns': some databases list it as a check, too."""
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
                message, 'where a sink of this job writes the other table: after = "..." (its name) on this one'
            )
        stored = [] if schema is None else table.stored(schema.names)
        changed = {*table.updated(stored), *dict(table.expressions), *(self.rest(schema) if schema is not None else ())}
        for name, child, columns in self.children():
            message = f"FOREIGN KEY {name} of table {child} to {table.name} may refuse"
            if table.deletes:
                yield self.late(f"{message} a delete, and one that cascades goes unseen", f"delete from {child} first")
            if moved := sorted({one.lower() for one in changed} & {one.lower() for one in columns}):
                fix = f"leave {', '.join(moved)} out of what is set (update_columns)"
                yield self.late(f"{message} a change of {', '.join(moved)}", fix)

    def late(self, message: str, fix: str) -> Finding:
        """Return a warning of what may end an epoch: that of strategy direct before the decision."""
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

    def fits(self, schema: pa.Schema | None) -> bool:
        return bool(self.there()) and not any(found.severity == "error" for found in self.columns(schema))

    def _of(
        self, view: str, columns: str, of: tuple[str, str] = ("table_schema", "table_name"), more: str = ""
    ) -> Sequence[Sequence[Any]]:
        """Return what a view has of the table."""
        query = f"SELECT {columns} FROM information_schema.{view} WHERE {of[1]} = {text(self._table.name)}"
        return self.rows(f"{query}{f' AND {of[0]} = {self._schema}' if self._schema else ''}{more} ORDER BY 1, 2")


def text(value: str) -> str:
    """Return a text as SQL has it; where a backslash means itself."""
    return "'" + value.replace("'", "''") + "'"
