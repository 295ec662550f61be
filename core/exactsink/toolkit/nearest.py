"""Suggest the known name that an unknown name may mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(given: object, known: Iterable[str]) -> str:
    """Return "did you mean NAME?" for the nearest known name; empty if no name is near, or if `given` is not text."""
    by_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), list(by_case), n=1, cutoff=0.55) if isinstance(given, str) else []
    return f"; did you mean {by_case[close[0]]}?" if close else ""
