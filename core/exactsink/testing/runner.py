"""Play scenarios, each in a process without threads. When the scenario ends, all processes that it started end."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from exactsink.testing.capabilities import Scenario, lacking
from exactsink.testing.context import Broken, Context
from exactsink.testing.processes import ended, start
from exactsink.testing.scenarios import bad_rows, commits, marks, matrix, others, rows, standings, votes
from exactsink.testing.target import ConformanceTarget

__all__ = ["SCENARIOS", "Runner", "Result"]

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        scenario.name: scenario
        for family in (matrix, rows, bad_rows, commits, votes, others, marks, standings)
        for scenario in family.SCENARIOS
    }
)
"""All scenarios by name, in their order."""

_LOG_LINES = 15
_PR_SET_CHILD_SUBREAPER = 36
"""Linux: orphaned descendants become this process's children."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a scenario.

    `why` is the problem, or the missing capability; `faults` names the faults that fired.
    """

    scenario: str
    outcome: Literal["passed", "failed", "skipped"]
    why: str = ""
    faults: Sequence[str] = ()
    seconds: float = 0.0


class Runner:
    """A separate process without threads, from which scenarios are forked. Close it.

    `limit_seconds` is the time after which a scenario fails as hanging.
    """

    def __init__(self, limit_seconds: float = 300) -> None:
        self._limit = limit_seconds
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def play(self, scenario: str, target: ConformanceTarget, folder: Path) -> Result:
        """Play a scenario on its own target in `folder`, which is empty. Raises KeyError for an unknown name."""
        SCENARIOS[scenario]
        self._pipe.send((scenario, target, folder, self._limit))
        result: Result = self._pipe.recv()
        return result

    def close(self) -> None:
        """End the process. Idempotent."""
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pa.array([0])  # it imports pandas, if installed: once here, not in every fork
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send(_play(*pipe.recv()))


def _play(name: str, target: ConformanceTarget, folder: Path, limit: float) -> Result:
    """Fork the scenario's process, wait for its end, and kill the processes that it leaves: stalled drivers,
    participants.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    pid = start(lambda: _perform(SCENARIOS[name], target, folder))
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)
    handle = os.pidfd_open(pid)
    hangs = not select.select([handle], [], [], limit)[0]
    os.close(handle)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    code = ended(pid)
    with suppress(ChildProcessError):  # its orphans are now this process's children, and none survives this loop
        while True:
            os.waitpid(-pid, 0)
    seconds = round(time.monotonic() - began, 2)
    if hangs:
        return Result(name, "failed", f"it hangs: no end after {limit:.0f} s" + _log(folder), (), seconds)
    try:
        result = Result(**json.loads((folder / "result").read_bytes()))
    except FileNotFoundError:
        return Result(name, "failed", f"its process ended {code}" + _log(folder), (), seconds)
    why = result.why + (_log(folder) if result.outcome == "failed" else "")
    return replace(result, why=why, seconds=seconds)


def _perform(scenario: Scenario, target: ConformanceTarget, folder: Path) -> int:
    """Run the scenario's process, in its own process group, with its output in a log."""
    with suppress(PermissionError):
        os.setpgid(0, 0)
    with open(folder / "log", "ab") as log:
        sys.stdout.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    result = _result(scenario, target, folder)
    temp = folder / "result.tmp"
    temp.write_text(json.dumps(asdict(result)))
    temp.rename(folder / "result")
    return 0


def _result(scenario: Scenario, target: ConformanceTarget, folder: Path) -> Result:
    context: Context | None = None
    try:
        context = Context(target, folder)
        if reason := lacking(scenario, context.backend, target):
            return Result(scenario.name, "skipped", reason)
        if context.backend.traits.can_lose_votes and not target.gives("lose_votes"):
            raise Broken("its traits say that votes can be lost (can_lose_votes): the target must give lose_votes()")
        scenario.play(context)
    except Broken as broken:
        return Result(scenario.name, "failed", str(broken), context.faults if context else ())
    except Exception as error:
        traceback.print_exc()
        return Result(scenario.name, "failed", f"{type(error).__name__}: {error}", context.faults if context else ())
    return Result(scenario.name, "passed", "", context.faults)


def _log(folder: Path) -> str:
    path = folder / "log"
    lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
    return "".join(f"\n  | {line}" for line in lines)
