"""The coordinator's refusals and repairs, over backends in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.backend import MemoryBackend, MemoryCommitter
from tests.simulation.drivers import frame_of
from tests.simulation.world import SCHEMA, SINKS, Schedule, Store, World, partitions_of

from exactsink.contract import ConfigError, Event, Fenced, InDoubtError, LineageError, Retryable
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Claim
from exactsink.protocol.participant import write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote


class Bench:
    """A world without faults, and drivers made by hand."""

    def __init__(self, schedule: Schedule | None = None) -> None:
        self.world = World(schedule or Schedule())
        self.reported: list[Event] = []
        self.attempts = 0

    def sinks(self) -> dict[str, Sink]:
        return {name: Sink(name, "memory", MemoryBackend(self.world, "A", name), "") for name in SINKS}

    def journal(self) -> Journal:
        return Journal(Store(self.world, "A"), wait=lambda _: None)

    def driver(self, sinks: dict[str, Sink] | None = None, done: int = -1, now: float = 0.0) -> Coordinator:
        coordinator = Coordinator(
            "sim",
            sinks or self.sinks(),
            self.journal(),
            Events("sim", [self.reported.append]),
            driver="A",
            retry=Retry(2, lambda _: None),
            save_state=lambda _: None,
            parallel=lambda calls: [call() for call in calls],
            now=lambda: now,
        )
        coordinator.start("query", lambda epoch: epoch <= done)
        return coordinator

    def batch(self, epoch: int, *, rows: str = "offsets", cut: int = 0, spoil: Any = None) -> Batch:
        def write(plan: EpochPlan) -> Sequence[Vote]:
            votes: list[Vote] = []
            for partition, held in partitions_of(epoch, rows, cut).items():
                self.attempts += 1
                backends = {name: sink.backend for name, sink in self.sinks().items()}
                batches = [dict.fromkeys(plan.sinks, frame_of(held))]
                votes += write_partition(plan, backends, partition, self.attempts, batches, lambda *_: None)
            return [spoil(v) for v in votes] if spoil else votes

        return Batch(epoch, f"{rows}-{epoch}", dict.fromkeys(SINKS, SCHEMA), write)

    def names(self) -> list[str]:
        return [event.name for event in self.reported if not event.edge]


def _decided_not_committed(bench: Bench) -> None:
    """Leave epoch 0 decided, and no sink committed."""
    driver = bench.driver()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exactsink.protocol.coordinator.commit_decision", _raise(Retryable("the process dies here")))
        with pytest.raises(Retryable):
            driver.run_epoch(bench.batch(0))


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*args: object, **fields: object) -> None:
        raise error

    return fail


def test_new_journal_takes_epoch_0_only() -> None:
    bench = Bench()
    with pytest.raises(LineageError, match="came with epoch 3, the journal expects 0"):
        bench.driver().run_epoch(bench.batch(3))
    assert not bench.world.applied


@pytest.mark.parametrize(("epoch", "taken"), [(1, False), (2, False), (7, True), (8, False)])
def test_journal_that_adopted_batch_7_takes_epoch_7_only(epoch: int, taken: bool) -> None:
    bench = Bench()
    driver = bench.driver()
    driver.run_epoch(bench.batch(0))
    driver.run_epoch(bench.batch(1))
    operator = bench.journal()
    operator.claim("query", "operator")
    operator.adopt("query", 7, "operator")
    with pytest.raises(Fenced):
        driver.run_epoch(bench.batch(2))
    if taken:
        bench.driver(done=1).run_epoch(bench.batch(epoch))
    else:
        with pytest.raises(LineageError):
            bench.driver(done=1).run_epoch(bench.batch(epoch, rows="anew"))
    assert set(bench.world.applied.values()) == {1}
    assert len(bench.world.applied) == (18 if taken else 12)


@pytest.mark.parametrize(("epoch", "why"), [(0, "checkpoint went back"), (3, "journal went back")])
def test_epoch_out_of_order_stops(epoch: int, why: str) -> None:
    bench = Bench()
    driver = bench.driver()
    driver.run_epoch(bench.batch(0))
    driver.run_epoch(bench.batch(1))
    with pytest.raises(LineageError, match=why):
        driver.run_epoch(bench.batch(epoch))


def test_same_epoch_with_other_input_stops() -> None:
    bench = Bench()
    driver = bench.driver()
    driver.run_epoch(bench.batch(0))
    with pytest.raises(LineageError, match="other input"):
        driver.run_epoch(bench.batch(0, rows="other"))


def test_same_epoch_with_the_same_input_is_skipped_and_reported() -> None:
    bench = Bench()
    driver = bench.driver()
    first, again = driver.run_epoch(bench.batch(0)), driver.run_epoch(bench.batch(0))
    assert (first.skipped, again.skipped) == (False, True)
    assert first.rows == again.rows == dict.fromkeys(SINKS, 3)
    assert "epoch_skipped" in bench.names()
    assert set(bench.world.applied.values()) == {1}


def test_driver_serves_no_more_after_an_error() -> None:
    bench = Bench()
    driver = bench.driver()
    with pytest.raises(LineageError):
        driver.run_epoch(bench.batch(7))
    with pytest.raises(Retryable, match="no claim"):
        driver.run_epoch(bench.batch(0))


def test_vote_that_says_otherwise_refuses_the_epoch() -> None:
    def short(spoiled: Vote) -> Vote:
        assert spoiled.committable is not None
        return replace(spoiled, committable=replace(spoiled.committable, rows=spoiled.rows - 1))

    bench = Bench()
    with pytest.raises(Retryable, match="refused before its decision"):
        bench.driver().run_epoch(bench.batch(0, spoil=short))
    assert bench.journal().read().decision is None
    assert bench.driver().run_epoch(bench.batch(0)).rows == dict.fromkeys(SINKS, 3)
    assert "swept" in bench.names(), "the refused try was aborted"


@pytest.mark.parametrize(("deadline", "refused"), [(1059.0, True), (1061.0, False)])
def test_deadline_that_leaves_too_little_time_refuses_the_epoch(deadline: float, refused: bool) -> None:
    def due(spoiled: Vote) -> Vote:
        assert spoiled.committable is not None
        return replace(spoiled, committable=replace(spoiled.committable, deadline=deadline))

    bench = Bench()
    driver = bench.driver(now=1000.0)
    if refused:
        with pytest.raises(Retryable, match=r"59\.0 s are left"):
            driver.run_epoch(bench.batch(0, spoil=due))
    else:
        driver.run_epoch(bench.batch(0, spoil=due))
    assert (bench.journal().read().decision is None) == refused


@pytest.mark.parametrize(("used", "reported"), [(299.0, []), (301.0, [("deadline_near", 299.0, 600.0)])])
def test_an_epoch_that_has_used_half_of_its_transactions_time_is_reported_aloud(
    used: float, reported: list[Any]
) -> None:
    def due(spoiled: Vote) -> Vote:
        assert spoiled.committable is not None
        return replace(spoiled, committable=replace(spoiled.committable, deadline=1600.0))

    bench = Bench()
    sinks = bench.sinks()
    sinks["lake"].backend.traits = replace(MemoryBackend.traits, prepared_seconds=600.0)  # type: ignore[misc]
    bench.driver(sinks, now=1000.0 + used).run_epoch(bench.batch(0, spoil=due))
    near = [event for event in bench.reported if event.name == "deadline_near"]
    assert [(event.name, event.fields["seconds"], event.fields["of"]) for event in near] == reported
    assert [event.fields["sink"] for event in near] == ["lake"] * len(reported), (
        "the others' stores keep what is prepared"
    )


def test_sinks_hear_where_the_source_stands_once_the_epoch_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    heard = []

    def hear(committer: MemoryCommitter, epoch: int, ends: Sequence[str]) -> None:
        heard.append(
            (epoch, *ends, sum(event.name == "complete" and event.edge == "after" for event in bench.reported))
        )
        if len(heard) == 1:
            raise Retryable("the group's coordinator is away")

    monkeypatch.setattr(MemoryCommitter, "source_reached", hear)
    bench.driver().run_epoch(replace(bench.batch(0), ends=("17",)))
    bench.driver().run_epoch(replace(bench.batch(0), ends=("17",)))
    assert heard == [(0, "17", 1)] * len(SINKS) + [(0, "17", 2)] * len(SINKS), "an epoch that is skipped reports it too"
    assert bench.names().count("source_not_reported") == 1, "advisory: the epoch stands"


@pytest.mark.parametrize("change", ["absent", "other target"])
def test_config_that_lacks_a_decided_sink_stops_before_the_claim(change: str) -> None:
    bench = Bench()
    _decided_not_committed(bench)
    sinks = bench.sinks()
    moved = sinks.pop("table")
    if change == "other target":
        sinks["table"] = replace(moved, kind="other")
    before = bench.journal().read()
    with pytest.raises(ConfigError, match="lacks sink table"):
        bench.driver(sinks)
    assert bench.journal().read() == before
    assert not bench.world.applied


def test_sink_can_go_once_the_source_has_recorded_the_epoch() -> None:
    bench = Bench()
    bench.driver().run_epoch(bench.batch(0))
    sinks = bench.sinks()
    del sinks["table"]
    result = bench.driver(sinks, done=0).run_epoch(bench.batch(1))
    assert result.rows == {"lake": 3}


def test_expired_evidence_stops_unless_the_source_has_recorded_the_epoch() -> None:
    bench = Bench()
    bench.driver().run_epoch(bench.batch(0))
    for participants in bench.world.sinks.values():
        participants.clear()
    with pytest.raises(InDoubtError, match="in doubt"):
        bench.driver()
    bench.driver(done=0).run_epoch(bench.batch(1))
    assert "evidence_expired" in bench.names()


def test_lost_sink_is_written_again_from_an_equal_replay_cut_otherwise() -> None:
    bench = Bench(Schedule(losses=frozenset({("lake", 0, 0), ("lake", 0, 1)})))
    _decided_not_committed(bench)
    driver = bench.driver()
    assert driver.run_epoch(bench.batch(0, cut=1)).skipped
    assert "redecided" in bench.names()
    assert set(bench.world.applied.values()) == {1}
    assert len(bench.world.applied) == 6
    log = bench.journal().read()
    assert log.decision is not None
    assert {c.txn.generation for c in log.decision.committables("lake")} == {2}
    assert {c.txn.generation for c in log.decision.committables("table")} == {1}


@pytest.mark.parametrize(
    ("losses", "replay"),
    [
        ({("lake", 0, 0)}, {"cut": 1}),  # other partitions, and one of the sink's votes stays
        ({("lake", 0, 0), ("lake", 0, 1)}, {"spoil": True}),  # other rows
    ],
    ids=["partitions differ", "rows differ"],
)
def test_replay_that_is_not_equal_stops_in_doubt(losses: set[tuple[str, int, int]], replay: dict[str, Any]) -> None:
    def other_rows(spoiled: Vote) -> Vote:
        assert spoiled.committable is not None
        digest = (spoiled.digest + 1) % (1 << 64)
        return replace(spoiled, digest=digest, committable=replace(spoiled.committable, digest=digest))

    if replay.get("spoil"):
        replay = {"spoil": other_rows}
    bench = Bench(Schedule(losses=frozenset(losses)))
    _decided_not_committed(bench)
    driver = bench.driver()
    with pytest.raises(InDoubtError, match="replay has other rows"):
        driver.run_epoch(bench.batch(0, **replay))
    bench.driver().run_epoch(bench.batch(0))  # the true replay fixes it
    assert set(bench.world.applied.values()) == {1}
    assert len(bench.world.applied) == 6


def test_lost_votes_and_a_source_that_goes_on_stop_in_doubt() -> None:
    bench = Bench(Schedule(losses=frozenset({("lake", 0, 0)})))
    _decided_not_committed(bench)
    with pytest.raises(InDoubtError, match="goes on to epoch 1"):
        bench.driver().run_epoch(bench.batch(1))


def test_fenced_driver_decides_nothing_and_aborts_nothing() -> None:
    bench = Bench()
    old = bench.driver()
    new = bench.driver()
    with pytest.raises(Fenced):
        old.run_epoch(bench.batch(0))
    states = {p.state for held in bench.world.sinks.values() for p in held.values()}
    assert states == {"prepared"}
    new.run_epoch(bench.batch(0))
    assert set(bench.world.applied.values()) == {1}


def test_overtaken_driver_is_reported_that_it_is_fenced_not_that_history_is_wrong() -> None:
    bench = Bench()
    old = bench.driver()
    new = bench.driver()
    new.run_epoch(bench.batch(0))
    with pytest.raises(Fenced):
        old.run_epoch(bench.batch(1))


def test_other_query_is_refused_before_the_claim() -> None:
    bench = Bench()
    bench.driver()
    coordinator = Coordinator(
        "sim",
        bench.sinks(),
        bench.journal(),
        Events("sim"),
        driver="A",
        retry=Retry(1, lambda _: None),
        save_state=lambda _: None,
    )
    with pytest.raises(LineageError, match="belongs to query"):
        coordinator.start("another query", lambda epoch: False)
    assert [type(c) for c in bench.journal().read().claims] == [Claim]
