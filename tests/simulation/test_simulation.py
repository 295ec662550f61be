"""The real coordinator and journal, simulated: every schedule keeps the promise, and every planted defect breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.simulation import batch_runs, changes, restored, schedules
from tests.simulation.defects import DEFECTS, Defect
from tests.simulation.drivers import Run
from tests.simulation.schedules import Lab
from tests.simulation.world import COPY, Schedule, Violation

SAMPLED = (
    *(schedules.crash_pairs, schedules.stalls, schedules.lost_votes, schedules.ordered, schedules.lost_and_crashed),
    *(schedules.interleaved, schedules.copies, schedules.claims_in_holes),
    *(restored.restores, restored.failovers, restored.forks, restored.failbacks),
    *(changes.recovered, changes.recovered_with_sinks_away, changes.rebased),
)
SAMPLE = 31
"""`make test` plays so many times fewer of their schedules: a prime, so that a sample meets all kinds of calls."""
FAMILIES = (
    *SAMPLED,
    *(schedules.single_faults, schedules.stale_listings, schedules.dropped_rows, schedules.expired_evidence),
    *(schedules.rolled_back_checkpoints, schedules.two_journals, batch_runs.batch_runs),
    *(changes.changed_configs, changes.adopted, changes.forgotten),
)
PLAYS = [pytest.param(family, True, id=family.__name__) for family in FAMILIES]
_ALL = (pytest.mark.proof, pytest.mark.timeout(1800))
PLAYS += [pytest.param(family, False, id=f"all {family.__name__}", marks=_ALL) for family in SAMPLED]
SEEDS = [
    pytest.param(range(first, first + 250), marks=pytest.mark.proof if first else ()) for first in range(0, 2000, 250)
]


@pytest.mark.parametrize(("family", "sampled"), PLAYS)
def test_promise_is_kept(
    family: Callable[[Lab], Iterator[Run]], sampled: bool, record_property: Callable[[str, object], None]
) -> None:
    count = sum(1 for _ in family(Lab(sample=SAMPLE) if sampled else Lab()))
    record_property("schedules", count)
    assert count >= 3 if sampled else count > 300


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_promise_is_kept_in_random_walks(seeds: range, record_property: Callable[[str, object], None]) -> None:
    for seed in seeds:
        try:
            schedules.random_walk(Lab(), seed)
        except Violation as violation:
            pytest.fail(f"seed {seed} replays it: {violation}")
    record_property("schedules", len(seeds))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_planted_defect_is_caught(
    defect: Defect, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    defect.plant(monkeypatch)
    count = 0
    with pytest.raises(Violation):
        for _ in defect.family(defect.lab):
            count += 1
    record_property("schedules", count + 1)


def test_stalled_driver_with_lost_votes_is_fenced_not_in_doubt() -> None:
    made = schedules.random_walk(Lab(), 15278)  # its successor repaired the epoch and went on, while it was stalled
    assert made.ends["B"] == "fenced"


@pytest.mark.parametrize(
    ("sink", "early", "late", "third"), [("lake", 13, 25, 24), ("table", 15, 27, 28)], ids=["look", "tokens"]
)
def test_a_target_that_comes_back_before_its_lost_rows_are_written_again_is_not_written_twice(
    sink: str, early: int, late: int, third: int
) -> None:
    """It was; where the target can't count its participants, in silence."""
    once = restored.restored_at(Schedule(epochs=2), early, late, [sink])
    made = restored.stopped_or_exact(Lab(), restored.back_again(once, third, [sink], crash=False))
    assert made.ends["next-0"] in restored.STOPPED


def test_a_copy_that_is_behind_does_not_commit_what_the_job_has_committed_meanwhile() -> None:
    """It did: a higher epoch was taken for a newer driver's, by which all is committed."""
    switches = {("A", 3): COPY, (COPY, 17): "A"}
    assert Lab().run(Schedule(switches=switches, looks=True)).ends == {"A": "finished", COPY: "LineageError"}


def test_a_sink_leaves_after_recover_though_spark_has_not_recorded_the_last_batch() -> None:
    """It could not: the refusal named recover as the way out, and came again after it."""
    before, after = changes.CONFIGS["a sink less"]
    schedule = changes.changing(before, after)
    last = Lab().run(schedule).world.finishes["A"][-1]
    made = changes.changed(Lab(), replace(schedule, faults={("A", last): "crash_before"}))
    assert made.ends == {"A": "crashed", "next-0": "ConfigError", "next-1": "finished"}


def test_seed_replays() -> None:
    first, second = schedules.random_walk(Lab(), 11), schedules.random_walk(Lab(), 11)
    assert (first.steps, first.ends, first.world.applied) == (second.steps, second.ends, second.world.applied)
