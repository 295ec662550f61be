"""What is to be done to one table, the same for every database: statements are made of it, one database's each.

Executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from exactsink_idempotent_upsert.names import ascii_lower

__all__ = ["DELETED", "GUARD", "Table"]

DELETED = "exactsink_delete"
"""The column of staged rows that says whether a row deletes its key's row. It is never stored."""

GUARD = ("exactsink_epoch", "exactsink_generation")
"""The columns of a table that tasks write to directly: whose write a row is, so that no older one goes over it."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table as the options want it.

    `exclude` names columns of the rows that are not stored; `deletes` says that rows bring the column DELETED;
    `guarded` that the table has the columns GUARD. `update_columns` are None where all but the keys are set;
    `expressions` are SQL by column, for a row whose key is there.
    """

    name: str
    keys: tuple[str, ...]
    order_by: str | None
    create: bool
    exclude: tuple[str, ...] = ()
    deletes: bool = False
    guarded: bool = False
    schema: str | None = None
    mode: Literal["upsert", "insert_if_absent", "replace"] = "upsert"
    update_columns: tuple[str, ...] | None = None
    expressions: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    add_columns: bool = False

    @property
    def ordered_by(self) -> str | None:
        """The column by which rows of one epoch are taken; None for the order in which they come."""
        return self.version or self.order_by

    def updated(self, names: Iterable[str]) -> list[str]:
        """Name the columns of the rows that are set where the key is there; `expressions` have their own.

        Of mode insert_if_absent it is none; but in a guarded table a row of the same epoch, which is not decided, is
        written again.
        """
        if self.mode == "insert_if_absent" and not self.guarded:
            return []
        own = {*self.keys, *dict(self.expressions)}
        some = None if self.update_columns is None else {*self.update_columns, self.version, *GUARD}
        return [name for name in names if name not in own and (some is None or name in some)]

    @property
    def target(self) -> str:
        """By what the table of owners knows the table."""
        return ascii_lower(self.name)

    def stored(self, names: Iterable[str]) -> list[str]:
        """Name the columns of the rows that the table holds."""
        return [name for name in names if name not in self.exclude and not (self.deletes and name == DELETED)]

    def bound(self, names: Iterable[str]) -> list[str]:
        """Name the columns whose values go in: those stored, and at the end whether the row deletes."""
        return [*self.stored(names), *([DELETED] if self.deletes else [])]
