"""Driver lives as the tests see them: started, stalled, killed, and what they came to."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from exactsink.testing import Fault
from tests.e2e.processes import Process
from tests.e2e.warm_jvm import SPARK_HOME, WarmJvm

KILLED = -signal.SIGKILL


class Life(Process):
    """A driver's process, on a warm JVM or with one of its own. `within` is put before its command."""

    def __init__(
        self,
        job: Path,
        fault: Fault | None,
        mark: Path,
        *,
        first: str | None = None,
        fill: Path | None = None,
        jvm: WarmJvm | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self.fault = fault
        self.mark = mark
        self._jvm = jvm
        command = [*within, sys.executable, "-m", "tests.e2e.life", str(job)]
        if fault is not None:
            command += [f"--point={fault.point}", f"--edge={fault.edge}", f"--action={fault.action}", f"--mark={mark}"]
            command += [] if fault.epoch is None else [f"--epoch={fault.epoch}"]
            command += [] if first is None else [f"--first={first}"]
            command += [] if fill is None else [f"--fill={fill}"]
        local = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(job.with_name("spark"))}
        super().__init__(command, mark.with_suffix(".log"), local if jvm is None else jvm.address)

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
        fault: Fault | None = None,
        *,
        first: str | None = None,
        fill: Path | None = None,
        jvm: WarmJvm | None = None,
        within: Sequence[str] = (),
    ) -> Life:
        """Start a life; its fault's mark and its log are its own."""
        self._count += 1
        mark = self._folder / f"life-{self._count}.fired"
        life = Life(job, fault, mark, first=first, fill=fill, jvm=jvm, within=within)
        self._stack.callback(life.end)
        return life

    def run(self, job: Path, fault: Fault | None = None, **how: Any) -> tuple[int, str]:
        """Live to the end; give the exit code and what was printed. A fault that never fired fails the test."""
        life = self.start(job, fault, **how)
        code = life.exit_code()
        life.end(patience=10)
        assert fault is None or life.mark.exists(), f"{fault} never fired: {life.told}"
        return code, life.told
