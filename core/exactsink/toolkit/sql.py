"""SQL that every database server of the backends accepts."""

from __future__ import annotations

import string

__all__ = ["ascii_lower", "counted_by", "quoted"]

_ASCII = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def ascii_lower(name: str) -> str:
    """Fold ASCII letters only, as SQLite and a PostgreSQL server in UTF-8 do: `Übung` and `übung` are two names."""
    return name.translate(_ASCII)


def quoted(*names: str) -> str:
    """Quote an identifier, or several as one qualified name."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def counted_by(column: str, table: str, first: int) -> str:
    """Return the query that counts a table's rows by the value of a column, from `first` on, and the rows with NULL.

    Column and table are quoted already.
    """
    return f"SELECT {column}, COUNT(*) FROM {table} WHERE {column} >= {first} OR {column} IS NULL GROUP BY {column}"
