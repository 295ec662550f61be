"""What is to be done to one table, the same for every database; and its name, as a job's config writes it.

Statements are made of it, one database's each. Executors import this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from exactsink.toolkit.sql import ascii_lower, quoted

__all__ = ["DELETED", "GUARD", "Table", "TableName"]

_PART = r"""(?:"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^."`][^.]*)"""
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
DELETED = "exactsink_delete"
"""The column of staged rows that says whether a row deletes its key's row. It is never stored."""

GUARD = ("exactsink_epoch", "exactsink_generation")
"""The columns of a table that tasks write to directly: whose write a row is, so that no older one goes over it."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name: `orders`, `sales.orders`, `"Odd Name"`. A quoted part is taken as it is."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str, fold: Callable[[str], str] = str) -> TableName:
        """Read a name; `fold` is what the database does to a part without quotes. Raises ValueError."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise ValueError(f'{text!r} is not a table name: write orders, sales.orders or "Odd Name"')
        return cls(found[1] and _plain(found[1], fold), _plain(found[2], fold))

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def _plain(part: str, fold: Callable[[str], str]) -> str:
    quote = part[0]
    return part[1:-1].replace(quote * 2, quote) if quote in '"`' else fold(part)


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

    def defined(self, kinds: Mapping[str, str], quoted: Callable[[str], str] = quoted) -> str:
        """Return what a CREATE TABLE has in its brackets, for columns of the rows and their types."""
        columns = {**kinds, **(dict.fromkeys(GUARD, "BIGINT") if self.guarded else {})}
        made = [f"{quoted(name)} {kind}{' NOT NULL' * (name in self.keys)}" for name, kind in columns.items()]
        return f"{', '.join(made)}, PRIMARY KEY ({', '.join(map(quoted, self.keys))})"

    def unless_newer(self, held: str, given: str, exact: str = "") -> list[str]:
        """Return what must hold for the row `held` to be set by the row `given`, in SQL: no newer one is there.

        `exact` follows a version that is given, and says how it is compared.
        """
        conditions = []
        if self.guarded:
            (epoch, generation), (new, by) = ([f"{row}.{name}" for name in GUARD] for row in (held, given))
            older = f"({epoch} IS NULL OR ({epoch}, {generation}) <= ({new}, {by}))"
            own = f"{epoch} = {new} AND {generation} <= {by}"
            conditions.append(own if self.mode == "insert_if_absent" else older)
        if self.version is not None:
            conditions.append(self.not_above(f"{held}.", f"{given}.{quoted(self.version)}{exact}"))
        return conditions

    def not_above(self, held: str, given: str) -> str:
        """Return the condition that a row's version is not greater than the given one; NULL is the lowest."""
        version = f"{held}{quoted(self.version or '')}"
        return f"({version} IS NULL OR {version} <= {given})"

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
