"""Driver runs over the real coordinator and the real journal, interleaved as a schedule says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import greenlet
import pyarrow as pa

from exactsink.contract import ExactsinkError, Fenced, InDoubtError, Retryable
from exactsink.protocol.commit import Retry, SinkCommit
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.participant import write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from tests.simulation.backend import SinkBackend, SinkStore
from tests.simulation.world import (
    OTHER,
    SCHEMA,
    SINKS,
    Crash,
    Participant,
    Schedule,
    Store,
    Violation,
    World,
    partitions_of,
)

JOB = "sim"
RESTARTS = 6
STOPPED = {"LineageError", "InDoubtError", "ConfigError", "gave up"}
SUCCESSORS = 8


@dataclass(frozen=True)
class Run:
    """What came of a schedule: the world, and why each driver ended."""

    world: World
    ends: Mapping[str, str]
    steps: Mapping[str, int]


def _now() -> float:
    return 0.0


def _one_by_one(calls: Sequence[Callable[[], SinkCommit]]) -> Sequence[SinkCommit]:
    return [call() for call in calls]


class Driver:
    """One Spark driver's run: it restarts its query on Retryable, and ends on anything else."""

    def __init__(self, world: World, name: str, hidden_defect: Callable[[SinkStore], None]) -> None:
        self.world = world
        self.name = name
        self.end = "running"
        stores = {sink: SinkStore(world, name, sink) for sink in SINKS}
        for store in stores.values():
            hidden_defect(store)
        self._backends = {sink: SinkBackend(store) for sink, store in stores.items()}

    def run(self) -> None:
        for _ in range(RESTARTS):
            try:
                self._query()
                self.end = "finished"
                return
            except (Retryable, ConnectionError):
                continue
            except Fenced:
                self.end = "fenced"
                return
            except ExactsinkError as error:
                self.end = "InDoubtError" if isinstance(error, InDoubtError) else type(error).__name__
                return
            except Crash:
                self.end = "crashed"
                return
        self.end = "gave up"

    def _query(self) -> None:
        world = self.world
        coordinator = self._coordinator()
        coordinator.start("query", lambda epoch: epoch <= world.done)
        if self.name == OTHER:
            return
        batch = world.done + 1
        while batch < world.schedule.epochs:
            fingerprint = world.plan_batch(self.name, batch)
            coordinator.run_epoch(self._batch(batch, fingerprint))
            world.finish_batch(self.name, batch)
            batch += 1

    def _coordinator(self) -> Coordinator:
        sinks = {name: Sink(name, "memory", backend, "") for name, backend in self._backends.items()}
        journal = Journal(Store(self.world, self.name), keep_epochs=1, most_anchors=2, wait=lambda _: None)
        return Coordinator(
            JOB,
            sinks,
            journal,
            Events(JOB),
            driver=self.name,
            retry=Retry(2, lambda _: None),
            save_state=lambda _: None,
            parallel=_one_by_one,
            now=_now,
        )

    def _batch(self, batch: int, fingerprint: str) -> Batch:
        def write(plan: EpochPlan) -> Sequence[Vote]:
            cut = plan.generation if self.world.schedule.recut else 0
            votes: list[Vote] = []
            whole = len(plan.sinks) == len(SINKS)  # else lost votes are written again
            if self.world.went_back and whole and self.world.is_new(plan.token, plan.epoch):
                self.world.check_exact(batch)
            for partition, rows in partitions_of(batch, fingerprint, cut).items():
                votes += self._task(plan, partition, rows)
            return votes

        previous = self.world.offsets.get(batch - 1, "")
        return Batch(batch, fingerprint, dict.fromkeys(SINKS, SCHEMA), write, previous=previous)

    def _task(self, plan: EpochPlan, partition: int, rows: tuple[str, ...]) -> list[Vote]:
        world = self.world
        if (delay := world.schedule.late_tasks.get(plan.epoch)) is not None:
            world.attempts += 1
            for sink in plan.sinks:
                zombie = plan.txn(sink, partition, world.attempts)
                effect = _late_prepare(world, sink, zombie, rows)
                world.late.append((world.clock + delay, effect))
        world.attempts += 1
        attempt = world.attempts
        empty = {sink for sink in plan.sinks if (sink, plan.epoch) in world.schedule.empty}
        batches = [{sink: frame_of(() if sink in empty else rows) for sink in plan.sinks}]
        return list(write_partition(plan, self._backends, partition, attempt, batches, lambda *_: None))


@cache
def frame_of(rows: tuple[str, ...]) -> tuple[pa.RecordBatch, pa.Array]:
    """Return rows as an Arrow batch, with a hash for each."""
    hashes = [zlib.crc32(row.encode()) for row in rows]
    return pa.record_batch({"row": pa.array(rows, pa.string())}), pa.array(hashes, pa.int64())


def _late_prepare(world: World, sink: str, txn: object, rows: tuple[str, ...]) -> Callable[[], None]:
    def effect() -> None:
        world.sinks[sink].setdefault(txn, Participant(rows))  # type: ignore[call-overload]

    return effect


def no_defect(store: SinkStore) -> None:
    """Leave a sink's store as it is."""


def run(
    schedule: Schedule,
    defect: Callable[[SinkStore], None] = no_defect,
    between: Callable[[World, int], None] = lambda world, number: None,
    *,
    not_idempotent: bool = False,
) -> Run:
    """Run a schedule to its end: drivers A, B, C as it switches to them, then fresh ones until the source is done.

    `between(world, number)` may change the world before a fresh driver. Raises Violation.
    """
    world = World(schedule)
    world.not_idempotent = not_idempotent
    drivers: dict[str, Driver] = {}
    threads: dict[str, greenlet.greenlet] = {}

    def resume(name: str) -> str | None:
        if name not in drivers:
            drivers[name] = Driver(world, name, defect)
            threads[name] = greenlet.greenlet(drivers[name].run)
        if threads[name].dead:
            return None
        target = threads[name].switch()
        return target if isinstance(target, str) else None

    def run_all(name: str | None) -> None:
        while name is not None:
            target = resume(name)
            waiting = [n for n, t in threads.items() if not t.dead and n != target]
            name = target if target is not None else (waiting[0] if waiting else None)

    run_all("A")
    for number in range(SUCCESSORS):
        if world.done >= schedule.epochs - 1 or any(driver.end in STOPPED for driver in drivers.values()):
            break
        between(world, number)
        run_all(f"next-{number}")
    ends = {name: driver.end for name, driver in drivers.items()}
    return Run(world, ends, dict(world.steps))


def last_start(run_: Run, defect: Callable[[SinkStore], None]) -> list[str]:
    """Let one more driver start, and open the epoch that comes next; return how it ended."""
    last = Driver(run_.world, "last", defect)
    greenlet.greenlet(last.run).switch()
    return [last.end]


def settle(run_: Run, defect: Callable[[SinkStore], None] = no_defect) -> None:
    """Check the end: everything is done, and one more start leaves no participant in doubt."""
    world = run_.world
    if world.done < world.schedule.epochs - 1:
        raise Violation(f"the source is not done: {run_.ends}")
    world.clock += 10_000
    world.schedule = replace(world.schedule, faults={}, switches={}, stale_lists={})
    last = Driver(world, "last", defect)
    last.run()
    if last.end != "finished":
        raise Violation(f"the last start ended {last.end}")
    held = [txn.id for sink in world.sinks.values() for txn, p in sink.items() if p.state == "prepared"]
    if held:
        raise Violation(f"still in doubt: {held}")
    world.check()
