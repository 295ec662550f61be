"""SQL as every server of a backend here writes it."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(*names: str) -> str:
    """Quote an identifier, or several as one qualified name."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
