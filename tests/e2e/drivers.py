"""Driver runs as the tests see them: started, stalled, killed, and what they came to."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exactsink.testing import Fault
from tests.e2e.processes import ENVIRONMENT, ROOT, Process, temporary
from tests.e2e.warm_jvm import SPARK_HOME, WarmJvm

KILLED = -signal.SIGKILL
_PR_SET_CHILD_SUBREAPER = 36
"""Linux: orphaned descendants become this process's children."""


class ForkServer:
    """A process that forks driver runs, which become children of this one. It ends with its input."""

    def __init__(self, python: str = sys.executable) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._popen = subprocess.Popen(
            [python, "-m", "tests.e2e.driver_run", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT, "PYSPARK_PYTHON": python},
            cwd=ROOT,
            start_new_session=True,
            text=True,
        )

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        """Start a driver run; return its process id."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        request = {"arguments": arguments, "environment": dict(environment), "log": str(log)}
        self._popen.stdin.write(json.dumps(request) + "\n")
        self._popen.stdin.flush()
        return int(self._popen.stdout.readline())

    def close(self) -> None:
        self._popen.communicate()


class Driver(Process):
    """A driver run's process, on a warm JVM or its own. `faults` fire once each; `marks` reports which did."""

    def __init__(
        self,
        server: ForkServer,
        job: Path,
        faults: Sequence[Fault],
        name: Path,
        *,
        first: str | None = None,
        hang: tuple[str, str, int] | None = None,
        jvm: WarmJvm | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.marks = {fault: name.with_suffix(f".{number}.fired") for number, fault in enumerate(faults, 1)}
        self._jvm = jvm
        arguments = [str(job)]
        for fault, mark in self.marks.items():
            arguments.append("--fault=" + json.dumps({**asdict(fault), "mark": str(mark)}))
        arguments += [] if first is None else [f"--first={first}"]
        arguments += [] if hang is None else [f"--hang={json.dumps(hang)}"]
        local = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(job.with_name("spark"))}
        log, way = name.with_suffix(".log"), local if jvm is None else jvm.address
        log.touch()
        self._attach(server.fork(arguments, {**temporary(log), **way, **(environment or {})}, log), log)

    @property
    def unfired(self) -> list[Fault]:
        """The faults whose place was not reached."""
        return [fault for fault, mark in self.marks.items() if not mark.exists()]

    def end(self, patience: float = 0.0) -> None:
        """End the driver run, and what it left in its JVM."""
        super().end(patience)
        if self._jvm is not None:
            self._jvm.settle()


class Drivers:
    """One test's driver runs, all of which end with it, also with a failed one; on `jvm` unless one is named."""

    def __init__(self, folder: Path, stack: ExitStack, server: ForkServer, jvm: WarmJvm | None = None) -> None:
        self._folder = folder
        self._stack = stack
        self._server = server
        self._jvm = jvm
        self._count = 0

    def start(self, job: Path, *faults: Fault, **how: Any) -> Driver:
        """Start a driver run, `how` as Driver takes it; its faults' marks and its log are its own."""
        self._count += 1
        name = self._folder / f"driver-{self._count}"
        driver = Driver(self._server, job, faults, name, **{"jvm": self._jvm, **how})
        self._stack.callback(driver.end)
        return driver

    def run(self, job: Path, *faults: Fault, **how: Any) -> tuple[int, str]:
        """Run a driver to its end; return its exit code and what it printed. A fault that never fired fails."""
        driver = self.start(job, *faults, **how)
        code = driver.exit_code()
        driver.end(patience=10)
        assert not driver.unfired, f"never fired: {driver.unfired}: {driver.reported}"
        return code, driver.reported

    def killed(self, job: Path, fault: Fault, **how: Any) -> None:
        """Run a driver that dies of its fault."""
        code, reported = self.run(job, fault, **how)
        assert code == KILLED, reported

    def whole(self, job: Path, **how: Any) -> str:
        """Run a driver to its good end; return what was printed."""
        code, reported = self.run(job, **how)
        assert code == 0, reported
        return reported
