"""Batch runs in the simulated world: the product's own writing of a run, called again, by one or by several."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Identity
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.spark import batch
from tests.simulation.backend import SinkStore
from tests.simulation.drivers import Driver, Run, coordinator_over, run
from tests.simulation.files import Store
from tests.simulation.schedules import FAULTS, Lab
from tests.simulation.world import SCHEMA, SINKS, Schedule, Violation, World

HASHES = {"a": "1", "b": "2", "same hash": "1"}


@dataclass(frozen=True)
class Write:
    """What the tasks of a run do."""

    task: Callable[[EpochPlan, int, tuple[str, ...]], list[Vote]]
    rows: tuple[str, ...]

    def __call__(self, plan: EpochPlan) -> Sequence[Vote]:
        return [vote for p, row in enumerate(self.rows) for vote in self.task(plan, p, (row,))]

    def close(self) -> None:
        """Hold nothing."""


class Caller(Driver):
    """A process that calls a batch run."""

    def __init__(self, world: World, name: str, defect: Callable[[SinkStore], None], run_name: str = "a") -> None:
        super().__init__(world, name, defect)
        self.run_name = run_name

    def _query(self) -> None:
        job = f"sim-{HASHES[self.run_name]}"
        journal = Journal(Store(self.world, self.name, job), keep_epochs=1, wait=lambda _: None)
        coordinator = coordinator_over(journal, self.sinks, self.name, Identity(job, run=self.run_name))
        write = Write(self._task, rows_of_run(self.run_name))
        passes: Any = SimpleNamespace(columns=dict, schemas=lambda: dict.fromkeys(self.sinks, SCHEMA))
        driver: Any = SimpleNamespace(coordinator=coordinator, journal=journal)
        with patch.object(batch, "BatchWrite", lambda *_, **__: write):
            result = batch._write(driver, None, self.run_name, passes)  # type: ignore[arg-type]
        if result.rows != dict.fromkeys(SINKS, len(write.rows)):
            raise Violation(f"run {self.run_name} returns {result}")
        self.world.source.done = 0  # so that nobody calls it again


def rows_of_run(name: str) -> tuple[str, ...]:
    return (f"{name}.0", f"{name}.1")


def batch_runs(lab: Lab) -> Iterator[Run]:
    """A run's first call goes wrong at every call it makes, with another one beside it or without; then it is called
    again. Its journal may be gone by then, and the other one may be of the same hash."""
    steps = range(run(Schedule(epochs=1), lab.defect, actor=Caller).steps["A"])
    for step, fault in itertools.product(steps, FAULTS):
        yield _called(lab, Schedule({("A", step): fault}, epochs=1), "a")
    for step, other in itertools.product(steps, HASHES):
        beside = Schedule(switches={("A", step): "B"}, epochs=1)
        yield _called(lab, beside, other)
        for back in range(0, 24, 4):
            yield _called(lab, replace(beside, switches={**beside.switches, ("B", back): "A"}), other)
    for step in steps:
        yield _called(lab, Schedule({("A", step): "crash_before"}, epochs=1), "a", lost=True)


def _called(lab: Lab, schedule: Schedule, other: str, *, lost: bool = False) -> Run:
    """Call run `a`, and `other` as B, until `a` ends well; check that each run shows once in every sink, or stopped."""

    def actor(world: World, name: str, defect: Callable[[SinkStore], None]) -> Caller:
        return Caller(world, name, defect, other if name == "B" else "a")

    def lose(world: World, number: int) -> None:
        if lost and number == 0:
            world.journals.clear()

    made = run(schedule, lab.defect, lose, actor=actor)
    if "a" in {other if name == "B" else "a" for name, end in made.ends.items() if end == "finished"}:
        actor(made.world, "again", lab.defect).run()
    finished = {other if name == "B" else "a" for name, end in made.ends.items() if end == "finished"}
    stopped = {other if name == "B" else "a" for name, end in made.ends.items() if end == "LineageError"}
    rows = Counter((sink, row) for name in finished for row in rows_of_run(name) for sink in SINKS)
    shown = +made.world.applied
    may_stop = lost or other == "same hash"
    doubled = max(shown.values(), default=0) > 1 or finished == {"a", "same hash"}
    if doubled or rows - shown or (shown - rows and not stopped) or (stopped and not may_stop):
        raise Violation(f"runs ended {made.ends}, and shown are {sorted(shown)}")
    if not finished and not (lost and stopped):
        raise Violation(f"no run was finished: {made.ends}")
    return made
