"""A coordinator over backends in memory whose events reach real subscribers, and the runs that metrics are held to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from tests.unit.test_coordinator import Bench

from exactsink.contract import Event, ExactsinkError, Retryable
from exactsink.protocol.coordinator import Coordinator
from exactsink.protocol.events import Subscriber


class _Relay(list[Event]):
    """Keeps the events, and passes them on."""

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        super().__init__()
        self.subscribers = subscribers

    def append(self, event: Event) -> None:
        super().append(event)
        for subscriber in self.subscribers:
            subscriber(event)


class Observed(Bench):
    """A bench whose drivers have these subscribers."""

    def __init__(self, *subscribers: Subscriber, losses: Iterable[tuple[str, int, int]] = ()) -> None:
        super().__init__(*losses)
        self.reported = _Relay(subscribers)

    def crash_before_the_commit(self, driver: Coordinator, epoch: int) -> None:
        """Run an epoch up to its decision."""

        def die(*args: object, **fields: object) -> None:
            raise Retryable("the driver stops here")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("exactsink.protocol.commit.CommitCalls.commit", die)
            with pytest.raises(Retryable, match="stops here"):
                driver.run_epoch(self.batch(epoch))


def two_epochs(*subscribers: Subscriber) -> Observed:
    """Run two epochs: 3 rows for each of 2 sinks."""
    bench = Observed(*subscribers)
    driver = bench.driver()
    for epoch in range(2):
        assert not driver.run_epoch(bench.batch(epoch)).skipped
        driver.returned(epoch)
    return bench


def decided_but_not_committed(*subscribers: Subscriber) -> Observed:
    """Decide epoch 0, stop, start again in the same process, and finish it: its batch is skipped."""
    bench = Observed(*subscribers)
    bench.crash_before_the_commit(bench.driver(), 0)
    assert bench.driver().run_epoch(bench.batch(0)).skipped
    return bench


def finished_again(*subscribers: Subscriber) -> Observed:
    """Get the batch of a finished epoch twice more, each time under a new claim."""
    bench = Observed(*subscribers)
    assert [bench.driver().run_epoch(bench.batch(0)).skipped for _ in range(3)] == [False, True, True]
    return bench


def decided_by_another(*subscribers: Subscriber) -> Observed:
    """Let another process decide and finish epoch 0; this one gets its batch again, and then epoch 1."""
    bench = Observed()
    bench.driver().run_epoch(bench.batch(0))
    bench.reported = _Relay(subscribers)
    driver = bench.driver()
    assert driver.run_epoch(bench.batch(0)).skipped
    driver.run_epoch(bench.batch(1))
    return bench


def lost_votes(*subscribers: Subscriber) -> Observed:
    """Lose both votes of sink lake after the decision; the start meets that, and a replay cut otherwise fixes it."""
    bench = Observed(*subscribers, losses=[("lake", 0, 0), ("lake", 0, 1)])
    bench.crash_before_the_commit(bench.driver(), 0)
    assert bench.driver().run_epoch(bench.batch(0, cut=1)).skipped
    return bench


def fenced(*subscribers: Subscriber) -> Observed:
    """Let a driver write epoch 0 and be overtaken before it decides; the newer one sweeps, and does the epoch."""
    bench = Observed(*subscribers)
    old, newer = bench.driver(), bench.driver()
    with pytest.raises(ExactsinkError) as raised:
        old.run_epoch(bench.batch(0))
    assert raised.value.exit_code == 4
    newer.run_epoch(bench.batch(0))
    return bench


RUNS = [two_epochs, decided_but_not_committed, finished_again, decided_by_another, lost_votes, fenced]
