"""The questions that every database answers about a sink's table, before the first row.

`Questions` has a method for each, so that no database can leave one out. A start and `check` ask them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["QUESTIONS", "Questions", "frame_findings", "keys_there", "named_findings"]

QUESTIONS = (
    "columns",
    "types",
    "keys",
    "privileges",
    "durability",
    "triggers",
    "constraints",
    "references",
    "partitions",
)
"""The methods of `Questions`, in the order in which they are asked."""


class Questions(ABC):
    """The answers of one database, out of one connection. They change nothing.

    `schema` is that of the rows, or None where it is not known yet. An error keeps rows out for certain; a warning may.
    A method whose answer can't matter to a database returns `()`, and a comment says why.
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
        """Ask all questions."""
        for question in QUESTIONS:
            yield from getattr(self, question)(schema)


def keys_there(table: Table, there: Collection[str], fold: Callable[[str], str] = str.lower) -> Iterator[Finding]:
    """Find keys that are no columns of the table, for rows that are not known yet; `fold` as below."""
    known = set(map(fold, there))
    for key in table.keys:
        if fold(key) not in known:
            message = f"`keys` names column {key}, table {table.name} has {', '.join(there)}"
            yield Finding("error", message, f"add {key} to table {table.name}, or correct `keys`")


def named_findings(table: Table, schema: pa.Schema) -> Iterator[Finding]:
    """Find columns that the options name and a frame lacks."""
    single = {"order_by": table.order_by, "version": table.version}
    named = {"keys": table.keys, "update_columns": table.update_columns or ()}
    for option, names in (named | {option: (name,) for option, name in single.items() if name is not None}).items():
        for name in names:
            if name not in schema.names:
                message = f"`{option}` names column {name}, the rows have {', '.join(schema.names)}"
                yield Finding("error", message, f"select {name} into this sink, or correct `{option}`")


def frame_findings(
    table: Table,
    schema: pa.Schema | None,
    product: str,
    column_type: Callable[[pa.DataType], str | None],
    fold: Callable[[str], str] = str.lower,
) -> Iterator[Finding]:
    """Find what keeps a frame out of any table of this product, whose types `column_type` names; silent without one.

    `fold` makes one of the names that are one column to it.
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
