"""Drivers without Spark, over backends in memory, for tests of the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.backend import SinkBackend, SinkStore
from tests.simulation.drivers import frame_of
from tests.simulation.files import Store
from tests.simulation.world import CONFIG, SCHEMA, SINKS, Schedule, World, partitions_of, rows_of

from exactsink.contract import Event, Retryable
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Batch, Coordinator, State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Identity
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote

Change = Callable[[Vote], Vote]


class Bench:
    """A world without faults but the votes that its backends lose, and drivers made for it."""

    def __init__(self, *losses: tuple[str, int, int]) -> None:
        self.world = World(Schedule(losses=frozenset(losses)))
        self.reported: list[Event] = []
        self.said: list[State] = []
        self.attempts = 0

    def sinks(self) -> dict[str, Sink]:
        return {b.name: Sink(b.name, "memory", SinkBackend(SinkStore(self.world, "A", b)), "") for b in CONFIG}

    def journal(self) -> Journal:
        return Journal(Store(self.world, "A"), wait=lambda _: None)

    def driver(
        self,
        sinks: dict[str, Sink] | None = None,
        done: int = -1,
        now: float = 0.0,
        query: str = "query",
        identity: Identity | None = None,
    ) -> Coordinator:
        coordinator = self.unstarted(sinks, now, identity)
        coordinator.start(query, lambda epoch: epoch <= done)
        return coordinator

    def unstarted(
        self, sinks: dict[str, Sink] | None = None, now: float = 0.0, identity: Identity | None = None
    ) -> Coordinator:
        return Coordinator(
            "sim",
            sinks or self.sinks(),
            self.journal(),
            Events("sim", [self.reported.append]),
            driver="A",
            retry=Retry(2, lambda _: None),
            save_state=self.said.append,
            identity=identity,
            parallel=lambda calls: [call() for call in calls],
            now=lambda: now,
        )

    def batch(self, epoch: int, *, rows: str = "offsets", cut: int = 0, change: Change = lambda vote: vote) -> Batch:
        def write(plan: EpochPlan) -> Sequence[Vote]:
            votes: list[Vote] = []
            for partition, held in partitions_of(rows_of(epoch, rows), cut).items():
                self.attempts += 1
                backends = {name: sink.backend for name, sink in self.sinks().items()}
                batches = [dict.fromkeys(plan.sinks, frame_of(held))]
                votes += write_partition(plan, backends, partition, self.attempts, batches, no_probe)
            return [change(vote) for vote in votes]

        previous = f"offsets-{epoch - 1}" if epoch else ""
        return Batch(epoch, f"{rows}-{epoch}", dict.fromkeys(SINKS, SCHEMA), write, previous=previous)

    def names(self) -> list[str]:
        return [event.name for event in self.reported if not event.edge]

    def check_applied(self, epochs: int) -> None:
        """Check that all rows of so many epochs are visible in every sink, once."""
        assert set(self.world.applied.values()) <= {1}
        assert len(self.world.applied) == epochs * 3 * len(SINKS)


def die(*args: object, **fields: object) -> None:
    raise Retryable("the process dies here")


def decided_not_committed(bench: Bench) -> None:
    """Leave epoch 0 decided, and no sink committed."""
    driver = bench.driver()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exactsink.protocol.commit.CommitCalls.commit", die)
        with pytest.raises(Retryable):
            driver.run_epoch(bench.batch(0))


def committable(**changes: Any) -> Change:
    """Change a vote's committable as no writer may; `rows` is added to what it has."""

    def change(vote: Vote) -> Vote:
        assert vote.committable is not None
        fields = {**changes, "rows": vote.rows + changes.get("rows", 0)}
        return replace(vote, committable=replace(vote.committable, **fields))

    return change


def other_rows(vote: Vote) -> Vote:
    assert vote.committable is not None
    return committable(digest=vote.committable.digest + 1)(vote)
