"""How long to wait before another try."""

from __future__ import annotations

import time

__all__ = ["backoff"]

_LONGEST_SECONDS = 10.0


def backoff(attempt: int) -> None:
    """Wait before another try: 0.1 s, doubled each time, 10 s at most."""
    time.sleep(min(0.1 * 2**attempt, _LONGEST_SECONDS))
