"""The questions that every database answers about a sink's table, before the first row.

`Questions` has a method for each, so that no database can leave one out. A start and `check` ask them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from exactsink.contract import Finding

__all__ = ["QUESTIONS", "Questions"]

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
