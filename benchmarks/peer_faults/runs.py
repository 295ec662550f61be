"""Programs that are killed, with all that they started, once a condition has come true."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.processes import Process

from benchmarks.peer_faults.plays import require

__all__ = ["KILLED", "Run"]

KILLED = -signal.SIGKILL


class Run:
    """A program that is started again and again, each time with a log of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._count = 0

    def killed_when(self, condition: Callable[[], bool], what: str, *more: str) -> None:
        """Start it, and `kill -9` it with all its children once the condition holds. It must not end before."""
        with self._started(*more) as process:
            process.until(condition, what)

    def dies(self, *more: str, code: int = KILLED) -> None:
        """Start it; it must die by its own fault, as this exit code says. Its children are killed with it."""
        with self._started(*more) as process:
            ended = process.exit_code()
            require(ended == code, f"it died with {code}: {ended}, {process.reported[-3000:]}")

    def whole(self, *more: str) -> tuple[int, str]:
        """Run it to its end; return its exit code and all that it printed."""
        with self._started(*more) as process:
            return process.exit_code(), process.reported

    @contextmanager
    def _started(self, *more: str) -> Iterator[Process]:
        self._count += 1
        process = Process([*self._command, *more], self._folder / f"run-{self._count}.log")
        try:
            yield process
        finally:
            process.end()
