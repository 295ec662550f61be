"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120  # seconds until a condition that does not come fails


def wait_until(done: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Poll until the condition is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.02)
