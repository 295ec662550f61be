"""Programs that are killed, with all their children, once a condition is true."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.processes import Process
from tests.e2e.warm_jvm import WarmJvm

from benchmarks.peer_faults.plays import require

__all__ = ["KILLED", "Run"]

KILLED = -signal.SIGKILL


class Run:
    """A program that is started repeatedly, each time with a new log; a Spark driver on a warm JVM."""

    def __init__(self, command: Sequence[str], folder: Path, jvm: WarmJvm | None = None) -> None:
        self._command = command
        self._folder = folder
        self._jvm = jvm
        self._count = 0

    def killed_when(self, condition: Callable[[], bool], what: str, *more: str) -> None:
        """Start it, and `kill -9` it with all its children once the condition is true. It must not end before.

        A driver has its own JVM, which is killed with it.
        """
        with self._started(more, {}) as process:
            process.until(condition, what)

    def dies(self, *more: str, code: int = KILLED) -> None:
        """Start it. It must die by its own fault, with this exit code. Its children are killed with it."""
        with self._started(more, self._address) as process:
            ended = process.exit_code()
            require(ended == code, f"it died with {code}: {ended}, {process.reported[-3000:]}")

    def whole(self, *more: str) -> tuple[int, str]:
        """Run it to its end. Return its exit code, and its output with its JVM's."""
        before = len(self._in_jvm)
        with self._started(more, self._address) as process:
            return process.exit_code(), process.reported + self._in_jvm[before:]

    @property
    def _address(self) -> Mapping[str, str]:
        return {} if self._jvm is None else self._jvm.address

    @property
    def _in_jvm(self) -> str:
        return "" if self._jvm is None else self._jvm.reported

    @contextmanager
    def _started(self, more: Sequence[str], environment: Mapping[str, str]) -> Iterator[Process]:
        self._count += 1
        process = Process([*self._command, *more], self._folder / f"run-{self._count}.log", environment)
        try:
            yield process
        finally:
            process.end()
            if environment and self._jvm is not None:
                self._jvm.settle()
