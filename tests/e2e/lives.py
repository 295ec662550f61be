"""Driver lives as the tests see them: started, stalled, killed, and what they came to."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exactsink.testing import Fault
from tests.e2e.processes import Process
from tests.e2e.warm_jvm import SPARK_HOME, WarmJvm

KILLED = -signal.SIGKILL


class Life(Process):
    """A driver's process, on a warm JVM or with one of its own. `within` is put before its command.

    `faults` fire once each; `marks` reports which did.
    """

    def __init__(
        self,
        job: Path,
        faults: Sequence[Fault],
        name: Path,
        *,
        first: str | None = None,
        fill: Path | None = None,
        jvm: WarmJvm | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self.marks = {fault: name.with_suffix(f".{number}.fired") for number, fault in enumerate(faults, 1)}
        self._jvm = jvm
        command = [*within, sys.executable, "-m", "tests.e2e.life", str(job)]
        for fault, mark in self.marks.items():
            command.append("--fault=" + json.dumps({**asdict(fault), "mark": str(mark)}))
        command += [] if first is None else [f"--first={first}"]
        command += [] if fill is None else [f"--fill={fill}"]
        local = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(job.with_name("spark"))}
        super().__init__(command, name.with_suffix(".log"), local if jvm is None else jvm.address)

    @property
    def unfired(self) -> list[Fault]:
        """The faults whose place was not reached."""
        return [fault for fault, mark in self.marks.items() if not mark.exists()]

    def end(self, patience: float = 0.0) -> None:
        """End the life, and what it left in its JVM."""
        super().end(patience)
        if self._jvm is not None:
            self._jvm.settle()


class Lives:
    """One test's lives, all of which end with it, also with a failed one."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._count = 0

    def start(
        self,
        job: Path,
        *faults: Fault,
        first: str | None = None,
        fill: Path | None = None,
        jvm: WarmJvm | None = None,
        within: Sequence[str] = (),
    ) -> Life:
        """Start a life; its faults' marks and its log are its own."""
        self._count += 1
        life = Life(job, faults, self._folder / f"life-{self._count}", first=first, fill=fill, jvm=jvm, within=within)
        self._stack.callback(life.end)
        return life

    def run(self, job: Path, *faults: Fault, **how: Any) -> tuple[int, str]:
        """Live to the end; give the exit code and what was printed. A fault that never fired fails the test."""
        life = self.start(job, *faults, **how)
        code = life.exit_code()
        life.end(patience=10)
        assert not life.unfired, f"never fired: {life.unfired}: {life.reported}"
        return code, life.reported
