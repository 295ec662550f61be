"""A name that nobody knows, and the known one that may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(given: object, known: Iterable[str]) -> str:
    """Return the question whether the nearest known name is meant; empty where none is near, or no text is given."""
    by_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), list(by_case), n=1, cutoff=0.55) if isinstance(given, str) else []
    return f"; did you mean {by_case[close[0]]}?" if close else ""
