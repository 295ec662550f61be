"""A scenario's context: one target, its jobs, the faults that must fire, and the rows that readers see."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from exactsink.contract import EXIT_BUG, Backend, Committable, Fenced, JobContext
from exactsink.protocol.sinks import Sink
from exactsink.testing.driver_run import Script, run_driver
from exactsink.testing.faults import Fault, FaultTrigger, FaultTriggers
from exactsink.testing.interrupt import Interrupted, Interruption
from exactsink.testing.processes import KILLED, ask, ended, start, stopped_or_ended, wake
from exactsink.testing.scenario import in_doubt, run_scenario
from exactsink.testing.session import Session
from exactsink.testing.target import ROWS, ConformanceTarget

__all__ = ["JOB", "SINK", "Broken", "Context"]

JOB, SINK = "kit", "out"


class Broken(Exception):
    """The promise does not hold on this target, or the scenario's fault never fired."""


class Context:
    """Made in a scenario's own process, which has no threads. Every call on the backend runs in a fork of it."""

    def __init__(self, target: ConformanceTarget, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.place = folder / "target"
        self.place.mkdir(parents=True)
        self.backend: Backend = ask(lambda: target.backend(self.place))
        self.faults: list[str] = []
        self._numbers = itertools.count()

    def job(self, name: str = JOB) -> str:
        """Return the full name of one of this scenario's jobs."""
        return self.target.job_prefix(self.place) + name

    def rows(self, *counts: Sequence[int], first: int = 0) -> list[list[pa.Table]]:
        """Make batches of rows in the writer's shape. `counts` are the rows of each partition, batch by batch."""
        raw, start = [], first
        for partitions in counts:
            bounds = list(itertools.accumulate(partitions, initial=start))
            raw.append([_table(*pair) for pair in itertools.pairwise(bounds)])
            start = bounds[-1]
        return ask(lambda: [[self.target.shaped(table) for table in batch] for batch in raw])

    def script(self, *counts: Sequence[int], job: str | None = None, first: int = 0, chunk: int = 7) -> Script:
        """Make a job of one sink; its rows are numbered from `first`. `job` is a full name."""
        job = job or self.job()
        sink = Sink(SINK, "conformance", self.backend, self.target.staging(self.place))
        folder = self.folder / "jobs" / job
        folder.mkdir(parents=True, exist_ok=True)
        return Script(job, folder, {SINK: sink}, self.rows(*counts, first=first), chunk)

    def through(self, script: Script, backend: Backend) -> Script:
        """Return the script with its sink's backend wrapped."""
        return replace(script, sinks={SINK: replace(script.sinks[SINK], backend=backend)})

    def session(
        self, generation: int, token: str, job: str | None = None, sink: str = SINK, lineage: str = ""
    ) -> Session:
        """Return a manual session on the target. `lineage` names a journal; by default it is made from the token."""
        ctx = JobContext(job or self.job(), sink, self.target.staging(self.place), generation, lineage or token)
        return Session(self.backend, ctx, token)

    def play(self, script: Script, *faults: Fault) -> None:
        """Play one driver run per fault, wake the stalled ones, then play whole driver runs, which must succeed."""
        report = run_scenario(script, faults)
        self.faults += [str(fault) for fault, fired in zip(faults, report.fired, strict=True) if fired]
        if report.problems:
            raise Broken("; ".join(report.problems))
        self.check_nothing_in_doubt(script)

    def killed(self, script: Script, fault: Fault) -> None:
        """Play a driver run that dies of its fault."""
        self.ends(self.start(script, fault), KILLED, str(fault))
        self.faults.append(str(fault))

    def stopped(self, script: Script, *faults: Fault) -> int:
        """Play a driver run until the last of its faults, all of which must fire, stops it. Return its process id."""
        triggers = self._triggers(script, faults)
        pid = start(lambda: run_driver(script, FaultTriggers(triggers)))
        self.stops(pid, str(faults[-1]))
        for fault, trigger in zip(faults, triggers, strict=True):
            if not trigger.fired:
                raise Broken(f"{fault} never fired")
            self.faults.append(str(fault))
        return pid

    def stops(self, pid: int, what: str) -> None:
        """Wait until a driver run is stopped."""
        code = stopped_or_ended(pid)
        if code is not None:
            raise Broken(f"{what} never fired: the driver run ended {code}")

    def woken(self, pid: int) -> None:
        """Wake a stopped driver and wait for its end: it is fenced, or it starts again and finishes the job."""
        wake(pid)
        code = ended(pid)
        if code not in (0, Fenced.exit_code):
            raise Broken(f"a driver that was woken ended {code}")

    def start(self, script: Script, *faults: Fault) -> int:
        """Start a driver run, with faults or without. Return its process id."""
        triggers = self._triggers(script, faults)
        return start(lambda: run_driver(script, FaultTriggers(triggers)))

    def interrupted(self, script: Script, interruption: Interruption, *faults: Fault) -> int:
        """Start a driver run whose calls are interrupted, and which may die of a fault. Return its process id."""
        return self.start(self.through(script, Interrupted(self.backend, interruption)), *faults)

    def ends(self, pid: int, code: int, who: str) -> None:
        """Wait for the end of a driver run. Raises Broken unless it ends with this code."""
        found = ended(pid)
        if found != code:
            bug = ", a programming mistake" if found == EXIT_BUG else ""
            raise Broken(f"{who} ended {found}{bug}; it was to end {code}")

    def whole(self, script: Script, code: int = 0) -> None:
        """Play a driver run without a fault. It must end with this exit code."""
        self.ends(self.start(script), code, "a driver run without a fault")

    def decided(self, script: Script) -> tuple[Committable, ...]:
        """Return the committables of the job's last decision."""
        decision = script.journal.read().decision
        return () if decision is None else tuple(decision.committables(SINK))

    def read(self) -> Counter[int]:
        """Read the target in a separate process."""
        return ask(lambda: self.target.applied(self.place))

    def check_rows(self, *expected: Iterable[int]) -> None:
        """Check that the target has each of these ids once.

        A sink that shows rows early may repeat an id, but never lose it.
        """
        self.check_read(self.read(), *expected)

    def check_rows_behind(self, *expected: Iterable[int]) -> None:
        """Check the ids while other rows are undecided: readers that wait at undecided rows may see fewer."""
        found = self.read()
        waiting = self.target.holds_readers
        self.check_read(found, *([row for row in ids if not waiting or row in found] for ids in expected))

    def check_read(self, found: Counter[int], *expected: Iterable[int]) -> None:
        right = Counter(itertools.chain(*expected))
        if found == right or (self.backend.traits.visible_early and set(found) == set(right)):
            return
        wrong = {
            "missing": [row for row in right if found[row] < 1],
            "applied more than once": [row for row in right if found[row] > 1],
            "not expected": [row for row in found if row not in right],
        }
        said = [f"{len(ids):,} rows are {what} ({_some(ids)})" for what, ids in wrong.items() if ids]
        raise Broken(f"of {len(right):,} rows: " + "; ".join(said))

    def check_nothing_in_doubt(self, script: Script) -> None:
        held = ask(lambda: in_doubt(script))
        if any(held.values()):
            raise Broken(f"at the end {held[SINK]} participants are still in doubt")

    def _triggers(self, script: Script, faults: Sequence[Fault]) -> list[FaultTrigger]:
        return [FaultTrigger(fault, script.folder / f"context-{next(self._numbers)}.fired") for fault in faults]


def _table(first: int, end: int) -> pa.Table:
    ids = range(first, end)
    columns = {"id": ids, "kind": [f"k{n % 3}" for n in ids], "amount": [n / 4 for n in ids]}
    return pa.table({name: list(values) for name, values in columns.items()}, schema=ROWS)


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
