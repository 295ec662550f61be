"""Driver runs over the real coordinator and the real journal, interleaved as a schedule says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import greenlet
import pyarrow as pa

from exactsink.contract import ExactsinkError, Fenced, InDoubtError, LineageError, Retryable, Txn
from exactsink.protocol.commit import Retry, SinkCommit
from exactsink.protocol.coordinator import Batch, Coordinator, State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Identity
from exactsink.protocol.participant import write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from tests.simulation.backend import SinkBackend, SinkStore, ref_of
from tests.simulation.files import SourceCheckpoint, Store
from tests.simulation.world import (
    CONFIG,
    COPY,
    JOB,
    OTHER,
    SCHEMA,
    Crash,
    Participant,
    Schedule,
    Source,
    Violation,
    World,
    partitions_of,
)

STOPPED = frozenset({"LineageError", "InDoubtError", "ConfigError", "gave up"})
SUCCESSORS = 8


@dataclass(frozen=True)
class Run:
    """What came of a schedule: the world, and why each driver ended."""

    world: World
    ends: Mapping[str, str]
    steps: Mapping[str, int]


def _now() -> float:
    return 0.0


def one_by_one(calls: Sequence[Callable[[], SinkCommit]]) -> Sequence[SinkCommit]:
    return [call() for call in calls]


def ended(work: Callable[[], object], errors: list[ExactsinkError] | None = None) -> str:
    """Do some work, and return how it ended; `gave up` is what may be tried again. What stopped it joins `errors`."""
    try:
        try:
            work()
        except ExactsinkError as error:
            if errors is not None:
                errors.append(error)
            raise
    except (Retryable, ConnectionError):
        return "gave up"
    except Fenced:
        return "fenced"
    except ExactsinkError as error:
        return "InDoubtError" if isinstance(error, InDoubtError) else type(error).__name__
    except Crash:
        return "crashed"
    return "finished"


class Driver:
    """One Spark driver's run: it restarts its query on Retryable, and ends on anything else."""

    def __init__(self, world: World, name: str, hidden_defect: Callable[[SinkStore], None]) -> None:
        self.world = world
        self.name = name
        self.end = "running"
        self.history = name if name in (OTHER, COPY) else JOB
        self.sinks = sinks_of(world, name, hidden_defect)
        self.backends = {sink: bound.backend for sink, bound in self.sinks.items()}

    def run(self) -> None:
        for _ in range(self.world.schedule.restarts):
            self.end = ended(self._query, self.world.errors)
            if self.end != "gave up":
                return

    @property
    def source(self) -> Source:
        return self.world.sources[self.history]

    def _query(self) -> None:
        if self.history == COPY and COPY not in self.world.sources:
            self.world.copy_job()
        if self.history == OTHER:
            self._coordinator().start("query", lambda epoch: False)
            return
        coordinator = self._coordinator()
        try:
            self._batches(coordinator)
        except Exception:  # a crash is none: nothing is left to do by then
            coordinator.leave()
            raise
        coordinator.leave()

    def _batches(self, coordinator: Coordinator) -> None:
        world, name = self.world, self.name
        checkpoint = SourceCheckpoint(self.source)
        journal, restored = self._journal, world.restored
        if not self.source.query:
            if journal.read().query_id:
                raise LineageError("the checkpoint is gone")
            self.source.query = f"query of {name}"
        start = coordinator.start(self.source.query, lambda epoch: checkpoint.is_epoch_done(epoch, journal.log))
        if (
            not start.lost
            and restored == world.restored
            and world.is_new(journal.log.claims[-1].token, journal.log.next_epoch)
        ):
            world.judge_start(journal.log)
        batch = self.source.done + 1
        while world.has_more(name, self.source, batch):
            world.plan_batch(name, self.source, batch)
            coordinator.run_epoch(self._batch(batch, checkpoint))
            world.finish_batch(name, self.source, batch)
            batch += 1

    def _coordinator(self) -> Coordinator:
        self._journal = Journal(
            Store(self.world, self.name, self.history), keep_epochs=1, most_anchors=2, wait=lambda _: None
        )
        return coordinator_over(self._journal, self.sinks, self.name, save_state=self.world.states[self.history].append)

    def _batch(self, batch: int, checkpoint: SourceCheckpoint) -> Batch:
        rows = self.source.planned(batch)

        def write(plan: EpochPlan) -> Sequence[Vote]:
            cut = plan.generation if self.world.schedule.recut else 0
            votes: list[Vote] = []
            whole = len(plan.sinks) == len(self.backends)  # else lost votes are written again
            if self.world.went_back and whole and self.world.is_new(plan.token, plan.epoch):
                self.world.check_exact(batch)
            self.world.written[plan.epoch] = rows
            for partition, part in partitions_of(rows, cut).items():
                votes += self._task(plan, partition, part)
            return votes

        epoch, schemas = self._journal.log.base + batch, dict.fromkeys(self.backends, SCHEMA)
        return Batch(epoch, checkpoint.fingerprint(batch), schemas, write, previous=checkpoint.previous(batch))

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
        return list(write_partition(plan, self.backends, partition, attempt, batches, lambda *_: None))


def sinks_of(world: World, actor: str, hidden_defect: Callable[[SinkStore], None]) -> Mapping[str, Sink]:
    """Connect an actor to the targets of its config."""
    stores = [SinkStore(world, actor, bound) for bound in world.schedule.configs.get(actor, CONFIG)]
    for store in stores:
        hidden_defect(store)
    after = world.schedule.after
    return {s.sink: Sink(s.sink, "memory", SinkBackend(s), "", after=after.get(s.sink, ())) for s in stores}


def coordinator_over(
    journal: Journal,
    sinks: Mapping[str, Sink],
    actor: str,
    identity: Identity | None = None,
    save_state: Callable[[State], None] = lambda _: None,
) -> Coordinator:
    """Make the real coordinator, without threads, clocks and pauses."""
    job = identity.job if identity is not None else JOB
    return Coordinator(
        job,
        sinks,
        journal,
        Events(job),
        driver=actor,
        retry=Retry(2, lambda _: None),
        save_state=save_state,
        identity=identity,
        parallel=one_by_one,
        now=_now,
    )


@cache
def frame_of(rows: tuple[str, ...]) -> tuple[pa.RecordBatch, pa.Array]:
    """Return rows as an Arrow batch, with a hash for each."""
    hashes = [zlib.crc32(row.encode()) for row in rows]
    return pa.record_batch({"row": pa.array(rows, pa.string())}), pa.array(hashes, pa.int64())


def _late_prepare(world: World, sink: str, txn: Txn, rows: tuple[str, ...]) -> Callable[[], None]:
    def effect() -> None:
        world.sinks[sink].setdefault(txn, Participant(rows, ref_of(txn), begun=world.clock))

    return effect


def no_defect(store: SinkStore) -> None:
    """Leave a sink's store as it is."""


def run(
    schedule: Schedule,
    defect: Callable[[SinkStore], None] = no_defect,
    between: Callable[[World, int], None] = lambda world, number: None,
    *,
    not_idempotent: bool = False,
    stopping: frozenset[str] = STOPPED,
    actor: Callable[[World, str, Callable[[SinkStore], None]], Any] = Driver,
    world: World | None = None,
) -> Run:
    """Run a schedule to its end: actors as it switches to them, then fresh drivers until the source is done.

    `between(world, number)` may change the world before a fresh driver. Raises Violation.
    """
    world = world or World(schedule)
    world.not_idempotent = not_idempotent
    drivers: dict[str, Any] = {}
    threads: dict[str, greenlet.greenlet] = {}

    def resume(name: str) -> str | None:
        if name not in drivers:
            drivers[name] = actor(world, name, defect)
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
        if world.is_over or any(driver.end in stopping for driver in drivers.values()):
            break
        between(world, number)
        run_all(f"next-{number}")
    return Run(world, {name: driver.end for name, driver in drivers.items()}, dict(world.steps))


def last_start(run_: Run, defect: Callable[[SinkStore], None]) -> list[str]:
    """Let one more driver start, and open the epoch that comes next; return how it ended."""
    last = Driver(run_.world, "last", defect)
    greenlet.greenlet(last.run).switch()
    return [last.end]


def settle(run_: Run, defect: Callable[[SinkStore], None] = no_defect) -> None:
    """Check the end: everything is done, and one more start leaves no participant in doubt."""
    world = run_.world
    if not world.is_over:
        raise Violation(f"the source is not done: {run_.ends}")
    world.clock += 10_000
    world.schedule = replace(world.schedule, faults={}, switches={}, stale_lists={}, until={})
    last = Driver(world, "last", defect)
    last.run()
    if last.end != "finished":
        raise Violation(f"the last start ended {last.end}")
    if held := world.in_doubt():
        raise Violation(f"still in doubt: {held}")
    world.check()
