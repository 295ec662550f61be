"""How long to wait before the next try."""

from __future__ import annotations

import time
from collections.abc import Iterator

__all__ = ["attempts_within", "backoff"]

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0


def backoff(attempt: int) -> None:
    """Wait before the next try: 0.1 s, then twice as long each time, at most 10 s."""
    time.sleep(min(_FIRST_SECONDS * 2**attempt, _LONGEST_SECONDS))


def attempts_within(
    seconds: float, *, first_seconds: float = _FIRST_SECONDS, longest_seconds: float = _LONGEST_SECONDS
) -> Iterator[int]:
    """Yield 0, 1, 2, ... until the time is over. Wait before each but the first, twice as long each time.

    The first comes at once, however short the time is. The last comes when the time is just over.
    """
    end, pause, attempt = time.monotonic() + seconds, first_seconds, 0
    while True:
        yield attempt
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause, attempt = min(pause * 2, longest_seconds), attempt + 1
