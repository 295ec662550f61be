"""Processes of the tests' own: each in a session of its own, waited for by condition, and ended by process id."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.servers.class_archives import SPARK, options

ROOT = Path(__file__).parents[2]
LONGEST = 300.0
"""Seconds after which a condition counts as never coming true; far more than anything here takes."""
QUICK_JAVA = " ".join(("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", *options(SPARK)))
"""Options of a JVM that lives for a while only: it starts fast, and compiles little."""
ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    "SPARK_LOCAL_IP": "127.0.0.1",
}


class Process:
    """A program with all that it starts. Its output goes to `log`; closing its input may end it."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **temporary(log), **(environment or {})},
                cwd=ROOT,
                start_new_session=True,
            )
        self._attach(popen.pid, log, popen)

    def _attach(self, pid: int, log: Path, popen: subprocess.Popen[bytes] | None = None) -> None:
        """Be this child of the test process, the leader of its session."""
        self.pid = pid
        self.log = log
        self._popen = popen
        self._reaped = False

    @property
    def reported(self) -> str:
        return self.log.read_text(errors="replace")

    def exit_code(self) -> int:
        """Wait for the program's end; a signal is a negative number."""
        _wait_gone([self.pid], LONGEST)
        code = self._code()
        assert code is not None, f"never ended: {self.reported}"
        return code

    def ended_within(self, seconds: float) -> int | None:
        """Wait for the program's end, for so long at most; return its exit code, None while it runs."""
        _wait_gone([self.pid], seconds)
        return self._code()

    def stopped(self) -> None:
        """Wait until the program has stopped itself (SIGSTOP). Fails when it ends instead."""
        seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED, f"ended instead of stopping: {self.reported}"

    def members(self) -> list[int]:
        """Return the process ids of it and of all that it started, of those that live."""
        return list(_family(self.pid, self.log))

    def left_behind(self) -> list[int]:
        """Return what has outlasted it: a JVM that is there now, or a Python worker that does not see its end, soon."""
        found = self.members()
        jvms = {pid for pid in found if _program(pid) == "java"}
        _wait_gone([pid for pid in found if pid not in jvms], 30)
        return sorted(jvms | set(self.members()))

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition that this program brings about. Fails when it ends before."""
        last = time.monotonic() + LONGEST
        while not condition():
            ended = self._code() is not None
            if (ended or time.monotonic() > last) and not condition():
                raise AssertionError(f"{'ended' if ended else 'waited'} without {what}: {self.reported}")
            _wait_gone([self.pid], 0.05)

    def end(self, patience: float = 0.0) -> None:
        """End it and all that it started: by itself within `patience` seconds, else with SIGKILL. Idempotent."""
        if self._reaped:  # its process id may be another's now
            return
        if self._popen is not None and self._popen.stdin is not None:
            with suppress(BrokenPipeError):
                self._popen.stdin.close()
        _wait_gone(self.members(), patience)
        while members := self.members():  # again: one may have forked meanwhile
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _wait_gone(members, LONGEST)
        self._reaped = True
        if self._popen is None:
            os.waitpid(self.pid, 0)
        else:
            self._popen.wait()

    def _code(self) -> int | None:
        """Look whether the program has ended, but don't reap it: its process id stays its own."""
        seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status


def temporary(log: Path) -> Mapping[str, str]:
    """Return the environment of a process whose temporary files are beside its log, by which it is known, too."""
    options = f"{QUICK_JAVA} -Djava.io.tmpdir={log.parent}"
    return {"JAVA_TOOL_OPTIONS": options, "TMPDIR": str(log.parent), "EXACTSINK_TESTS_LOG": str(log)}


def _family(leader: int, log: Path) -> Iterator[int]:
    """Find the living of a leader's session, and of those with its log in their environment: a JVM has a session of its
    own, and the leader may be gone."""
    mark = f"EXACTSINK_TESTS_LOG={log}".encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                state, _, _, session, *_ = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                its_own = int(session) == leader or mark in Path("/proc", entry, "environ").read_bytes().split(b"\0")
                if its_own and state not in "ZX":
                    yield int(entry)


def _program(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path("/proc", str(pid), "comm").read_text().strip()
    return ""


def _wait_gone(pids: Iterator[int] | Sequence[int], seconds: float) -> None:
    """Wait until all are gone, for so long at most."""
    last = time.monotonic() + seconds
    with ExitStack() as opened:
        handles = []
        for pid in pids:
            with suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
                opened.callback(os.close, handles[-1])
        while handles:
            gone, _, _ = select.select(handles, [], [], max(0.0, last - time.monotonic()))
            if not gone:
                return
            handles = [handle for handle in handles if handle not in gone]
