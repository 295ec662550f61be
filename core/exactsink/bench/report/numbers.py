"""Format figures for people."""

from __future__ import annotations

import re

from exactsink.bench.report.model import Cell

__all__ = ["ABSENT", "printable", "shown", "tick"]

ABSENT = "-"
_LARGE = 1000
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def shown(cell: Cell) -> str:
    """Return a cell's text: whole counts, measured figures with three digits, a dash for a missing figure."""
    if cell is None or cell != cell:
        return ABSENT
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= _LARGE:
        return f"{cell:,.0f}"
    rounded = float(f"{cell:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= _LARGE else f"{rounded:g}"


def tick(value: float) -> str:
    """Return an axis label, as short as possible: `10k`."""
    for size, letter in _SCALES:
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def printable(text: str) -> str:
    """Return a text without characters that a page can't hold."""
    return _FORBIDDEN.sub("\ufffd", text)
