"""A name that nobody knows, and the known one that may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(given: object, known: Iterable[str]) -> str:
    """Return the question whether the nearest known name is meant; empty where none is near, or no text is given."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.55) if isinstance(given, str) else []
    return f"; did you mean {close[0]}?" if close else ""
