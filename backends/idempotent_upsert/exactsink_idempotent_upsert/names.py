"""The names that SQL has for tables and columns, as a job's config writes them. Executors import this module."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TableName", "ascii_lower"]

_PART = r"""(?:"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^."`][^.]*)"""
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
_ASCII = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


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
            raise ValueError(f'{text!r} is no table name: write orders, sales.orders or "Odd Name"')
        return cls(found[1] and _plain(found[1], fold), _plain(found[2], fold))

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def ascii_lower(name: str) -> str:
    """Fold ASCII letters only, as SQLite compares names: `Übung` and `übung` are two tables to it."""
    return name.translate(_ASCII)


def _plain(part: str, fold: Callable[[str], str]) -> str:
    quote = part[0]
    return part[1:-1].replace(quote * 2, quote) if quote in '"`' else fold(part)
