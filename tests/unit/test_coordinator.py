"""The coordinator's refusals and repairs, over backends in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.backend import SinkBackend, SinkCommitter, SinkStore
from tests.simulation.drivers import frame_of
from tests.simulation.files import Store
from tests.simulation.world import CONFIG, SCHEMA, SINKS, Schedule, World, partitions_of, rows_of

from exactsink.contract import (
    Committable,
    ConfigError,
    Event,
    Fatal,
    Fenced,
    InDoubtError,
    JobContext,
    LineageError,
    Mark,
    Refused,
    Retryable,
    Txn,
)
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Batch, Coordinator, State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Decision, Log
from exactsink.protocol.journal.records import Claim, DecidedSink, Identity
from exactsink.protocol.lineage import check_follows, check_replay
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.sinks import Sink, bound_sinks, is_bound, lacking_sinks
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


@pytest.fixture
def bench() -> Bench:
    return Bench()


def _die(*args: object, **fields: object) -> None:
    raise Retryable("the process dies here")


def _decided_not_committed(bench: Bench) -> None:
    """Leave epoch 0 decided, and no sink committed."""
    driver = bench.driver()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exactsink.protocol.commit.CommitCalls.commit", _die)
        with pytest.raises(Retryable):
            driver.run_epoch(bench.batch(0))


def _committable(**changes: Any) -> Change:
    """Change a vote's committable as no writer may; `rows` is added to what it has."""

    def change(vote: Vote) -> Vote:
        assert vote.committable is not None
        fields = {**changes, "rows": vote.rows + changes.get("rows", 0)}
        return replace(vote, committable=replace(vote.committable, **fields))

    return change


def _other_rows(vote: Vote) -> Vote:
    assert vote.committable is not None
    return _committable(digest=vote.committable.digest + 1)(vote)


# which epoch may come


@pytest.mark.parametrize(
    ("ran", "epoch", "why"),
    [
        (0, 3, "came with epoch 3, the journal expects 0.*journal went back"),
        (0, 2, r"adopt JOB.toml`: epochs 0 to 1 are then missing in every sink"),
        (2, 0, "checkpoint went back"),
        (2, 3, "journal went back"),
    ],
)
def test_epoch_out_of_order_stops_and_the_driver_serves_no_more(bench: Bench, ran: int, epoch: int, why: str) -> None:
    driver = bench.driver()
    for number in range(ran):
        driver.run_epoch(bench.batch(number))
    with pytest.raises(LineageError, match=why):
        driver.run_epoch(bench.batch(epoch))
    with pytest.raises(Retryable, match="no claim"):
        driver.run_epoch(bench.batch(ran))
    bench.check_applied(ran)


def test_same_epoch_is_skipped_when_its_input_is_the_same_and_stops_when_it_is_not(bench: Bench) -> None:
    first, again = bench.driver().run_epoch(bench.batch(0)), bench.driver().run_epoch(bench.batch(0))
    assert (first.skipped, again.skipped) == (False, True)
    assert first.rows == again.rows == dict.fromkeys(SINKS, 3)
    assert "epoch_skipped" in bench.names()
    with pytest.raises(LineageError, match="other input"):
        bench.driver().run_epoch(bench.batch(0, rows="other"))
    bench.check_applied(1)


@pytest.mark.parametrize("decided_before", [False, True])
def test_an_epoch_that_comes_twice_under_one_claim_is_no_replay_and_is_refused(
    bench: Bench, decided_before: bool
) -> None:
    if decided_before:
        _decided_not_committed(bench)
    driver = bench.driver()
    driver.run_epoch(bench.batch(0))
    with pytest.raises(Refused, match="called twice for one batch"):
        driver.run_epoch(bench.batch(0))
    with pytest.raises(Retryable, match="has no claim"):
        driver.run_epoch(bench.batch(1))
    driver.start("query", lambda epoch: False)
    assert driver.run_epoch(bench.batch(0)).skipped, "a new claim finishes it again"
    bench.check_applied(1)


def test_other_query_is_refused_before_the_claim(bench: Bench) -> None:
    bench.driver()
    with pytest.raises(LineageError, match="belongs to query"):
        bench.driver(query="another query")
    assert len(bench.journal().read().claims) == 1


# before the decision


def test_vote_that_says_otherwise_refuses_the_epoch(bench: Bench) -> None:
    with pytest.raises(Retryable, match="refused before its decision"):
        bench.driver().run_epoch(bench.batch(0, change=_committable(rows=-1)))
    assert bench.journal().read().decision is None
    assert bench.driver().run_epoch(bench.batch(0)).rows == dict.fromkeys(SINKS, 3)
    assert "swept" in bench.names(), "the refused try was aborted"


def test_deadline_that_leaves_too_little_time_refuses_the_epoch(bench: Bench) -> None:
    with pytest.raises(Retryable, match=r"59\.0 s are left"):
        bench.driver(now=1000.0).run_epoch(bench.batch(0, change=_committable(deadline=1059.0)))
    assert bench.journal().read().decision is None
    bench.driver(now=1000.0).run_epoch(bench.batch(0, change=_committable(deadline=1061.0)))
    bench.check_applied(1)


@pytest.mark.parametrize(("used", "reported"), [(299.0, []), (301.0, [("lake", 299.0, 600.0)])])
def test_an_epoch_that_has_used_half_of_its_transactions_time_is_reported_aloud(
    bench: Bench, used: float, reported: list[Any]
) -> None:
    sinks = bench.sinks()
    limited = SinkStore(bench.world, "A", CONFIG[0])  # the other's store keeps what is prepared for good
    limited.traits = replace(limited.traits, prepared_seconds=600.0)
    sinks["lake"] = replace(sinks["lake"], backend=SinkBackend(limited))
    bench.driver(sinks, now=1000.0 + used).run_epoch(bench.batch(0, change=_committable(deadline=1600.0)))
    near = [event.fields for event in bench.reported if event.name == "deadline_near"]
    assert [(fields["sink"], fields["seconds"], fields["of"]) for fields in near] == reported


# after it


def test_sinks_hear_where_the_source_stands_once_the_epoch_is_complete(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []

    def hear(committer: SinkCommitter, epoch: int, ends: Sequence[str]) -> None:
        complete = [event for event in bench.reported if (event.name, event.edge) == ("complete", "after")]
        heard.append((epoch, *ends, len(complete)))
        if len(heard) == 1:
            raise Retryable("the group's coordinator is away")

    monkeypatch.setattr(SinkCommitter, "source_reached", hear)
    bench.driver().run_epoch(replace(bench.batch(0), ends=("17",)))
    bench.driver().run_epoch(replace(bench.batch(0), ends=("17",)))
    assert heard == [(0, "17", 1)] * len(SINKS) + [(0, "17", 2)] * len(SINKS), "an epoch that is skipped reports it too"
    assert bench.names().count("source_not_reported") == 1, "advisory: the epoch stands"


@pytest.mark.parametrize("change", ["absent", "other target"])
def test_config_that_lacks_a_decided_sink_stops_before_the_claim(bench: Bench, change: str) -> None:
    _decided_not_committed(bench)
    sinks = bench.sinks()
    moved = sinks.pop("table")
    if change == "other target":
        sinks["table"] = replace(moved, kind="other")
    before = bench.journal().read()
    with pytest.raises(ConfigError, match="lacks sink table"):
        bench.driver(sinks)
    assert bench.journal().read() == before
    bench.check_applied(0)


def test_a_sink_can_go_once_a_driver_has_left_and_found_nothing_in_doubt(bench: Bench) -> None:
    driver, lake = bench.driver(), {"lake": bench.sinks()["lake"]}
    driver.run_epoch(bench.batch(0))
    with pytest.raises(ConfigError, match="lacks sink table") as refused:
        bench.driver(lake, done=0)  # it may have left work there, and without the config nobody can ask
    assert "generation 1 did not end cleanly" in refused.value.why
    assert "exactsink recover JOB.toml" in refused.value.next
    again = bench.driver(done=0)
    again.leave()
    with pytest.raises(Retryable, match="has no claim"):
        again.run_epoch(bench.batch(1))
    shorter = bench.driver(lake, done=0)
    assert shorter.run_epoch(bench.batch(1)).rows == {"lake": 3}
    shorter.leave()
    bench.driver(done=1).run_epoch(bench.batch(2))  # the one that comes back stands where it was left
    marks = {name: sink.backend.committer(JobContext("sim", name, "")).mark() for name, sink in bench.sinks().items()}
    assert {name: mark and mark.epoch for name, mark in marks.items()} == {"lake": 2, "table": 2}


def test_a_driver_that_met_an_error_does_not_leave_clean(bench: Bench) -> None:
    driver = bench.driver()
    with pytest.raises(Retryable):
        driver.run_epoch(bench.batch(0, change=_committable(rows=7)))
    driver.leave()
    assert bench.journal().read().open_claims


def test_a_decision_after_a_clean_stop_makes_its_claim_open_again(bench: Bench) -> None:
    bench.driver().leave()
    assert bench.journal().read().open_claims == ()
    bench.driver().run_epoch(bench.batch(0))
    assert [claim.generation for claim in bench.journal().read().open_claims] == [2]


@pytest.mark.parametrize("other", [Identity("other"), Identity("sim", run="2026-11-20")], ids=["job", "run"])
def test_another_job_or_run_is_refused_before_the_claim(bench: Bench, other: Identity) -> None:
    """Renamed with its checkpoint, it would not find what the old name has prepared."""
    bench.driver().run_epoch(bench.batch(0))
    before = bench.journal().read()
    with pytest.raises(LineageError, match="the journal belongs to job sim, and this is"):
        bench.driver(done=0, identity=other)
    assert bench.journal().read() == before
    assert before.claims[0].identity == Identity("sim", sinks=bound_sinks(bench.sinks()))


def test_a_batch_that_does_not_begin_where_the_last_epoch_ended_is_refused(bench: Bench) -> None:
    """Its number fits and its end is new: the source cut what lies between anew."""
    driver = bench.driver()
    driver.run_epoch(bench.batch(0))
    with pytest.raises(LineageError, match="epoch 1 does not begin where epoch 0 ended"):
        driver.run_epoch(replace(bench.batch(1), previous="offsets-0-anew"))
    bench.driver().run_epoch(bench.batch(1))
    with pytest.raises(LineageError, match="decided for other input"):
        bench.driver().run_epoch(replace(bench.batch(1), previous="offsets-0-anew"))


def test_a_batch_begins_where_the_last_epoch_ended_though_that_had_no_sinks() -> None:
    log = Log(
        anchors=(Claim(1, "aa", "host", "query", "aa"),), decision=Decision(4, "end-4", {}, (1,), previous="end-3")
    )
    check_follows(log, 5, "end-4")
    with pytest.raises(LineageError, match="epoch 5 does not begin where epoch 4 ended"):
        check_follows(log, 5, "end-4-anew")


@pytest.mark.parametrize(("decided", "begins"), [("", "end-3"), ("end-3", ""), ("end-3", "end-3-anew")])
def test_a_replay_begins_where_the_decided_batch_began_also_where_one_has_nothing_before_it(
    decided: str, begins: str
) -> None:
    check_replay(Decision(4, "end-4", {}, (1,), previous=decided), "end-4", decided)
    with pytest.raises(LineageError, match="decided for other input"):
        check_replay(Decision(4, "end-4", {}, (1,), previous=decided), "end-4", begins)


# lost participants


UNEQUAL: Mapping[str, tuple[list[tuple[str, int, int]], dict[str, Any]]] = {
    "other partitions, and one of the sink's votes stays": ([("lake", 0, 0)], {"cut": 1}),
    "other rows": ([("lake", 0, 0), ("lake", 0, 1)], {"change": _other_rows}),
}


@pytest.mark.parametrize(("losses", "replay"), UNEQUAL.values(), ids=UNEQUAL)
def test_replay_that_is_not_equal_stops_in_doubt(losses: list[tuple[str, int, int]], replay: dict[str, Any]) -> None:
    bench = Bench(*losses)
    _decided_not_committed(bench)
    with pytest.raises(InDoubtError, match="replay has other rows"):
        bench.driver().run_epoch(bench.batch(0, **replay))
    bench.driver().run_epoch(bench.batch(0))  # the true replay fixes it
    bench.check_applied(1)


def test_rows_that_show_by_now_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the start somebody has put the target forward: the mark shows more than the votes that are kept."""
    bench = Bench(("lake", 0, 0))
    bench.world.schedule = replace(bench.world.schedule, marks=True)
    _decided_not_committed(bench)
    driver, log = bench.driver(), bench.journal().read()
    assert log.decision is not None
    votes = log.decision.committables("lake")
    shown = Mark(log.lineage, 0, frozenset(vote.txn.token for vote in votes), len(votes))
    monkeypatch.setattr(SinkCommitter, "mark", lambda self: shown)
    with pytest.raises(InDoubtError, match=r"1 participants of sink lake are in doubt: .*2 participants.* not lost"):
        driver.run_epoch(replace(bench.batch(0), write=lambda plan: pytest.fail("written")))


def test_lost_votes_of_a_quarantine_are_written_from_rows_that_are_judged_again() -> None:
    bench = Bench(("table", 0, 0))
    _decided_not_committed(bench)
    sinks, plans = bench.sinks(), list[EpochPlan]()
    sinks["lake"] = replace(sinks["lake"], quarantine="table")
    with pytest.raises(Retryable, match="dies here"):
        bench.driver(sinks).run_epoch(replace(bench.batch(0), write=lambda plan: plans.append(plan) or _die()))
    assert [(set(plan.sinks), set(plan.judged)) for plan in plans] == [({"table"}, {"lake"})]


@pytest.mark.parametrize("decided", [False, True])
def test_before_all_marks_are_seen_nothing_is_opened_or_committed(bench: Bench, decided: bool) -> None:
    driver = bench.driver()
    if decided:
        _decided_not_committed(bench)
    bench.world.births["table", "sim"] = "another"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(LineageError, match="sink table: its target holds"):
        patch.setattr(SinkCommitter, "commit" if decided else "open_epoch", lambda *_: pytest.fail("before the look"))
        bench.driver() if decided else driver.run_epoch(bench.batch(0))


def test_lost_votes_and_a_source_that_goes_on_stop_in_doubt() -> None:
    bench = Bench(("lake", 0, 0))
    _decided_not_committed(bench)
    with pytest.raises(InDoubtError, match="source has gone on"):
        bench.driver().run_epoch(bench.batch(1))


def test_a_driver_that_has_found_lost_votes_and_not_repaired_them_does_not_leave_clean() -> None:
    bench = Bench(("lake", 0, 0))
    _decided_not_committed(bench)
    bench.driver().leave()
    assert (bench.journal().read().decision_is_open, bench.said[-1].complete_epoch) == (True, None)
    repairing = bench.driver()
    repairing.run_epoch(bench.batch(0))
    repairing.leave()
    assert (bench.journal().read().decision_is_open, bench.said[-1].complete_epoch) == (False, 0)


@pytest.mark.parametrize(("marks", "says"), [(True, "lake: its target holds the birth"), (False, "has lost rows")])
def test_lost_votes_of_a_batch_that_is_done_stop_the_start(marks: bool, says: str) -> None:
    """A target went back: no batch may come that would see it, and the job must not end as if all were well."""
    bench = Bench()
    bench.world.schedule = replace(bench.world.schedule, marks=marks)
    bench.driver().run_epoch(bench.batch(0))
    for participant in bench.world.sinks["lake"].values():
        participant.state = "dropped"
    with pytest.raises(InDoubtError, match=says):
        bench.driver(done=0)


def test_what_another_driver_decides_before_the_claim_is_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has done the epoch that was read first, and not the one that stands when the claim does."""
    bench = Bench(("lake", 1, 0))
    bench.driver().run_epoch(bench.batch(0))
    claim = Journal.claim

    def late(journal: Journal, *arguments: Any) -> Claim:
        monkeypatch.setattr(Journal, "claim", claim)
        other = bench.driver(done=0)
        with monkeypatch.context() as patch:
            patch.setattr("exactsink.protocol.commit.CommitCalls.commit", _die)
            with pytest.raises(Retryable):
                other.run_epoch(bench.batch(1))
        return claim(journal, *arguments)

    monkeypatch.setattr(Journal, "claim", late)
    bench.driver(done=0).run_epoch(bench.batch(1))
    bench.check_applied(2)


@pytest.mark.parametrize("other", [Bench.driver, _decided_not_committed], ids=["begun", "decided"])
def test_a_sink_that_another_driver_has_opened_before_the_claim_is_not_lacking(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, other: Callable[[Bench], object]
) -> None:
    """Nothing spoke of it when the journal was read first; its rows would have been left where they were."""
    claim = Journal.claim

    def late(journal: Journal, *arguments: Any) -> Claim:
        monkeypatch.setattr(Journal, "claim", claim)
        other(bench)
        return claim(journal, *arguments)

    monkeypatch.setattr(Journal, "claim", late)
    for _ in range(2):  # the newest claim is of a driver without it, then
        with pytest.raises(ConfigError, match="lacks sink table"):
            bench.driver({"lake": bench.sinks()["lake"]})
    bench.check_applied(0)
    bench.driver().run_epoch(bench.batch(0))
    bench.check_applied(1)


def test_of_a_decision_of_an_older_release_only_the_sinks_with_rows_must_stay(bench: Bench) -> None:
    """Its claims don't say which sinks they had."""
    votes = (Committable(Txn("sim", 0, "lake", 1, "aa", 0, 0), 1, b""),)
    bound = {
        sink.name: DecidedSink(sink.backend, sink.strategy, sink.target, ()) for sink in bound_sinks(bench.sinks())
    }
    decision = Decision(0, "end-0", {**bound, "lake": replace(bound["lake"], committables=votes)}, (1,))
    log = Log(1, anchors=(Claim(1, "aa", "host", "query", "aa", seq=0),), decision=decision)
    for gone, lacking in (("lake", ["lake"]), ("table", [])):
        kept = {name: sink for name, sink in bench.sinks().items() if name != gone}
        assert [sink.name for sink, _ in lacking_sinks(kept, log, source_done=False)] == lacking


@pytest.mark.parametrize("changed", [{}, {"backend": "x"}, {"strategy": "x"}, {"target": "x"}], ids=str)
def test_a_sink_is_the_decided_one_by_its_backend_strategy_and_target(bench: Bench, changed: dict[str, str]) -> None:
    sinks = bench.sinks()
    [mine] = (sink for sink in bound_sinks(sinks) if sink.name == "lake")
    decided = replace(DecidedSink(mine.backend, mine.strategy, mine.target, ()), **changed)  # type: ignore[arg-type]
    assert is_bound(sinks, Decision(0, "end-0", {"lake": decided}, (1,)), "lake") is (not changed)


# fencing


@pytest.mark.parametrize("epoch", [0, 1], ids=["which is decided here", "which the newer one has passed"])
def test_overtaken_driver_is_fenced_and_decides_and_aborts_nothing(bench: Bench, epoch: int) -> None:
    """Its history is not wrong: it is old."""
    old, new = bench.driver(), bench.driver()
    for number in range(epoch):
        new.run_epoch(bench.batch(number))
    before = bench.journal().read()
    with pytest.raises(Fenced):
        old.run_epoch(bench.batch(epoch))
    assert bench.journal().read() == before
    states = [p.state for held in bench.world.sinks.values() for txn, p in held.items() if txn.epoch == epoch]
    assert set(states) <= {"prepared"}
    new.run_epoch(bench.batch(epoch))
    bench.check_applied(epoch + 1)


def test_votes_that_a_sink_refuses_together_are_not_decided(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Committable]] = []

    def check_votes(self: SinkCommitter, epoch: int, committables: Sequence[Committable]) -> None:
        asked.append(committables)
        if len(asked) == len(SINKS):
            raise Fatal("a key comes twice")

    monkeypatch.setattr(SinkCommitter, "check_votes", check_votes)
    with pytest.raises(Fatal, match="comes twice"):
        bench.driver().run_epoch(bench.batch(0))
    assert bench.journal().read().decision is None
    bench.driver().run_epoch(bench.batch(0))  # the next driver sweeps them, and has the batch written again
    decision = bench.journal().read().decision
    assert decision is not None
    assert [tuple(given) for given in asked[len(SINKS) :]] == [tuple(decision.committables(name)) for name in SINKS]
    bench.check_applied(1)
