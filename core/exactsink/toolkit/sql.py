"""SQL as every server of a backend here writes it."""

from __future__ import annotations

__all__ = ["counted_by", "quoted"]


def quoted(*names: str) -> str:
    """Quote an identifier, or several as one qualified name."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def counted_by(column: str, table: str, first: int) -> str:
    """Return the query that counts a table's rows by what they have in a column, from `first` on, and NULL.

    Column and table are quoted.
    """
    return f"SELECT {column}, COUNT(*) FROM {table} WHERE {column} >= {first} OR {column} IS NULL GROUP BY {column}"
