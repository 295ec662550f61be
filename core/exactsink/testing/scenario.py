"""Play driver runs: some die, some stall and wake once their successor is done, and the last ones have no fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exactsink.contract import Fenced
from exactsink.protocol.sinks import committer_of
from exactsink.testing.driver_run import Script, run_driver
from exactsink.testing.faults import Fault, FaultTrigger
from exactsink.testing.processes import KILLED, ask, ended, start, stopped_or_ended, wait_gone, wake

__all__ = ["ScenarioReport", "in_doubt", "run_scenario"]


@dataclass(frozen=True, slots=True)
class ScenarioReport:
    """The result of a scenario. `problems` is empty if the framework kept its part of the promise.

    `exits` are the exit codes of the driver runs in the order of their starts, a signal as a negative number.
    `in_doubt` counts the participants that each sink still holds at the end.
    """

    fired: Sequence[bool]
    exits: Sequence[int]
    in_doubt: Mapping[str, int]
    problems: Sequence[str]


def run_scenario(script: Script, faults: Sequence[Fault]) -> ScenarioReport:
    """Play one driver run per fault, wake the stalled ones, then play two runs without a fault. It forks: use no
    threads.

    A fault that never fired is a problem, and so is a driver run whose exit code its fault does not explain.
    """
    exits: list[int] = []
    problems: list[str] = []
    triggers = [FaultTrigger(fault, _mark(script, number)) for number, fault in enumerate(faults)]
    stalled: list[tuple[int, int]] = []
    for number, (fault, trigger) in enumerate(zip(faults, triggers, strict=True)):
        pid = _start(script, trigger)
        code = stopped_or_ended(pid)
        if code is None:
            stalled.append((number, pid))
            exits.append(0)
            continue
        exits.append(code)
        expected = (KILLED,) if _in_driver(fault) and fault.action == "kill" else (0,)
        if exits[-1] not in expected:
            problems.append(f"driver run {number} ended {exits[-1]}, its fault explains {expected}")
    exits.append(_whole_run(script, problems))
    for number, pid in stalled:
        wake(pid)
        exits[number] = ended(pid)
        if exits[number] not in (0, Fenced.exit_code):
            problems.append(f"driver run {number}, woken, ended {exits[number]}")
    for pid in _stalled_participants(script):
        wake(pid)
        wait_gone(pid)
    exits.append(_whole_run(script, problems))
    fired = [trigger.fired for trigger in triggers]
    problems += [f"{fault} never fired" for fault, done in zip(faults, fired, strict=True) if not done]
    return ScenarioReport(fired, exits, ask(lambda: in_doubt(script)), problems)


def _start(script: Script, trigger: FaultTrigger | None) -> int:
    return start(lambda: run_driver(script, trigger))


def _whole_run(script: Script, problems: list[str]) -> int:
    code = ended(_start(script, None))
    if code != 0:
        problems.append(f"a driver run without a fault ended {code}")
    return code


def _in_driver(fault: Fault) -> bool:
    return fault.point not in ("write", "pre_commit")


def _mark(script: Script, number: int) -> Path:
    script.folder.mkdir(parents=True, exist_ok=True)
    return script.folder / f"fault-{number}.fired"


def _stalled_participants(script: Script) -> Sequence[int]:
    path = script.folder / "stalled"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def in_doubt(script: Script) -> Mapping[str, int]:
    """Count the participants that each sink of a job holds neither committed nor aborted."""
    held = {}
    for name, sink in script.sinks.items():
        committer = committer_of(sink, script.job)
        held[name] = len(list(committer.in_doubt()))
        committer.close()
    return held
