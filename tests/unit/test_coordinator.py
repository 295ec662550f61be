"""The coordinator's refusals and repairs, over backends in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.backend import SinkBackend, SinkCommitter, SinkStore
from tests.simulation.world import CONFIG, SINKS
from tests.unit.coordinator_bench import Bench, committable, decided_not_committed, die

from exactsink.contract import Committable, ConfigError, Fatal, Fenced, JobContext, LineageError, Refused, Retryable
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Decision, Log
from exactsink.protocol.journal.records import Claim, DecidedSink, Identity
from exactsink.protocol.lineage import check_follows, check_replay
from exactsink.protocol.sinks import bound_sinks, is_bound


@pytest.fixture
def bench() -> Bench:
    return Bench()


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
        decided_not_committed(bench)
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
        bench.driver().run_epoch(bench.batch(0, change=committable(rows=-1)))
    assert bench.journal().read().decision is None
    assert bench.driver().run_epoch(bench.batch(0)).rows == dict.fromkeys(SINKS, 3)
    assert "swept" in bench.names(), "the refused try was aborted"


def test_deadline_that_leaves_too_little_time_refuses_the_epoch(bench: Bench) -> None:
    with pytest.raises(Retryable, match=r"59\.0 s are left"):
        bench.driver(now=1000.0).run_epoch(bench.batch(0, change=committable(deadline=1059.0)))
    assert bench.journal().read().decision is None
    bench.driver(now=1000.0).run_epoch(bench.batch(0, change=committable(deadline=1061.0)))
    bench.check_applied(1)


@pytest.mark.parametrize(("used", "reported"), [(299.0, []), (301.0, [("lake", 299.0, 600.0)])])
def test_an_epoch_that_has_used_half_of_its_transactions_time_is_reported_aloud(
    bench: Bench, used: float, reported: list[Any]
) -> None:
    sinks = bench.sinks()
    limited = SinkStore(bench.world, "A", CONFIG[0])  # the other's store keeps what is prepared for good
    limited.traits = replace(limited.traits, prepared_seconds=600.0)
    sinks["lake"] = replace(sinks["lake"], backend=SinkBackend(limited))
    bench.driver(sinks, now=1000.0 + used).run_epoch(bench.batch(0, change=committable(deadline=1600.0)))
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
    decided_not_committed(bench)
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
        driver.run_epoch(bench.batch(0, change=committable(rows=7)))
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


def test_what_another_driver_decides_before_the_claim_is_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has done the epoch that was read first, and not the one that stands when the claim does."""
    bench = Bench(("lake", 1, 0))
    bench.driver().run_epoch(bench.batch(0))
    claim = Journal.claim

    def late(journal: Journal, *arguments: Any) -> Claim:
        monkeypatch.setattr(Journal, "claim", claim)
        other = bench.driver(done=0)
        with monkeypatch.context() as patch:
            patch.setattr("exactsink.protocol.commit.CommitCalls.commit", die)
            with pytest.raises(Retryable):
                other.run_epoch(bench.batch(1))
        return claim(journal, *arguments)

    monkeypatch.setattr(Journal, "claim", late)
    bench.driver(done=0).run_epoch(bench.batch(1))
    bench.check_applied(2)


@pytest.mark.parametrize("other", [Bench.driver, decided_not_committed], ids=["begun", "decided"])
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
