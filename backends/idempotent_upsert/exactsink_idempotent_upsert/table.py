"""The operations on one table, the same for every database; and the table's name in a job's config.

Each database makes its statements from it. Executors import this module.
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
"""In a table with direct writes, the columns of the epoch and generation of a row, so that no older one replaces it."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name: `orders`, `sales.orders`, `"Odd Name"`. A quoted part is taken literally."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str, fold: Callable[[str], str] = str) -> TableName:
        """Read a name. `fold` is the database's conversion of an unquoted part. Raises ValueError."""
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
    """One table, as the options describe it.

    `exclude` names columns of the rows that are not stored. `deletes` says that rows have the column DELETED, `guarded`
    that the table has the columns GUARD. `update_columns` are None if all columns but the keys are set. `expressions`
    are SQL by column, for a row whose key exists.
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
        """Return the definitions in the brackets of a CREATE TABLE, for columns of the rows and their types."""
        columns = {**kinds, **(dict.fromkeys(GUARD, "BIGINT") if self.guarded else {})}
        made = [f"{quoted(name)} {kind}{' NOT NULL' * (name in self.keys)}" for name, kind in columns.items()]
        return f"{', '.join(made)}, PRIMARY KEY ({', '.join(map(quoted, self.keys))})"

    def unless_newer(self, held: str, given: str, exact: str = "") -> list[str]:
        """Return the SQL condition under which the row `held` may be set by the row `given`: no newer row exists.

        `exact` follows a given version, and says how it is compared.
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
        """The key of the table in the table of owners."""
        return ascii_lower(self.name)

    def stored(self, names: Iterable[str]) -> list[str]:
        """Name the columns of the rows that the table holds."""
        return [name for name in names if name not in self.exclude and not (self.deletes and name == DELETED)]

    def bound(self, names: Iterable[str]) -> list[str]:
        """Name the columns whose values are bound: the stored ones and, at the end, whether the row deletes."""
        return [*self.stored(names), *([DELETED] if self.deletes else [])]
