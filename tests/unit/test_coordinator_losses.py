"""The coordinator after votes were lost: what it writes again, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.backend import SinkCommitter
from tests.unit.coordinator_bench import Bench, decided_not_committed, die, other_rows

from exactsink.contract import InDoubtError, LineageError, Mark, Retryable
from exactsink.protocol.votes import EpochPlan


@pytest.fixture
def bench() -> Bench:
    return Bench()


UNEQUAL: Mapping[str, tuple[list[tuple[str, int, int]], dict[str, Any]]] = {
    "other partitions, and one of the sink's votes stays": ([("lake", 0, 0)], {"cut": 1}),
    "other rows": ([("lake", 0, 0), ("lake", 0, 1)], {"change": other_rows}),
}


@pytest.mark.parametrize(("losses", "replay"), UNEQUAL.values(), ids=UNEQUAL)
def test_replay_that_is_not_equal_stops_in_doubt(losses: list[tuple[str, int, int]], replay: dict[str, Any]) -> None:
    bench = Bench(*losses)
    decided_not_committed(bench)
    with pytest.raises(InDoubtError, match="replay has other rows"):
        bench.driver().run_epoch(bench.batch(0, **replay))
    bench.driver().run_epoch(bench.batch(0))  # the true replay fixes it
    bench.check_applied(1)


def test_rows_that_show_by_now_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the start somebody has put the target forward: the mark shows more than the votes that are kept."""
    bench = Bench(("lake", 0, 0))
    bench.world.schedule = replace(bench.world.schedule, marks=True)
    decided_not_committed(bench)
    driver, log = bench.driver(), bench.journal().read()
    assert log.decision is not None
    votes = log.decision.committables("lake")
    shown = Mark(log.lineage, 0, frozenset(vote.txn.token for vote in votes), len(votes))
    monkeypatch.setattr(SinkCommitter, "mark", lambda self: shown)
    with pytest.raises(InDoubtError, match=r"1 participants of sink lake are in doubt: .*2 participants.* not lost"):
        driver.run_epoch(replace(bench.batch(0), write=lambda plan: pytest.fail("written")))


def test_lost_votes_of_a_quarantine_are_written_from_rows_that_are_judged_again() -> None:
    bench = Bench(("table", 0, 0))
    decided_not_committed(bench)
    sinks, plans = bench.sinks(), list[EpochPlan]()
    sinks["lake"] = replace(sinks["lake"], quarantine="table")
    with pytest.raises(Retryable, match="dies here"):
        bench.driver(sinks).run_epoch(replace(bench.batch(0), write=lambda plan: plans.append(plan) or die()))
    assert [(set(plan.sinks), set(plan.judged)) for plan in plans] == [({"table"}, {"lake"})]


@pytest.mark.parametrize("decided", [False, True])
def test_before_all_marks_are_seen_nothing_is_opened_or_committed(bench: Bench, decided: bool) -> None:
    driver = bench.driver()
    if decided:
        decided_not_committed(bench)
    bench.world.births["table", "sim"] = "another"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(LineageError, match="sink table: its target holds"):
        patch.setattr(SinkCommitter, "commit" if decided else "open_epoch", lambda *_: pytest.fail("before the look"))
        bench.driver() if decided else driver.run_epoch(bench.batch(0))


def test_lost_votes_and_a_source_that_goes_on_stop_in_doubt() -> None:
    bench = Bench(("lake", 0, 0))
    decided_not_committed(bench)
    with pytest.raises(InDoubtError, match="source has gone on"):
        bench.driver().run_epoch(bench.batch(1))


def test_a_driver_that_has_found_lost_votes_and_not_repaired_them_does_not_leave_clean() -> None:
    bench = Bench(("lake", 0, 0))
    decided_not_committed(bench)
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
