"""The real coordinator and journal, simulated: every schedule keeps the promise, and every planted defect breaks it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from exactsink.protocol.journal import journal
from tests.simulation import restored, schedules
from tests.simulation.defects import DEFECTS, Defect
from tests.simulation.drivers import Run
from tests.simulation.schedules import Lab
from tests.simulation.world import Violation, decode

FAMILIES = (
    schedules.single_faults,
    schedules.crash_pairs,
    schedules.stalls,
    schedules.claims_in_holes,
    schedules.lost_votes,
    schedules.stale_listings,
    schedules.dropped_rows,
    schedules.expired_evidence,
    schedules.rolled_back_checkpoints,
    schedules.two_journals,
    restored.restores,
    restored.failovers,
)
SEEDS = [range(first, first + 500) for first in range(0, 2000, 500)]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(journal, "decode", decode)  # which remembers what it has read
    logging.getLogger("exactsink").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("exactsink").setLevel(logging.NOTSET)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_promise_is_kept(
    family: Callable[[Lab], Iterator[Run]], record_property: Callable[[str, object], None]
) -> None:
    count = sum(1 for _ in family(Lab(sample=13)))
    record_property("schedules", count)
    assert count >= 3


@pytest.mark.proof
@pytest.mark.parametrize("family", [restored.restores, restored.failovers], ids=lambda family: family.__name__)
def test_promise_is_kept_whatever_goes_back(
    family: Callable[[Lab], Iterator[Run]], record_property: Callable[[str, object], None]
) -> None:
    """Every schedule of the families that `make test` plays a sample of."""
    count = sum(1 for _ in family(Lab()))
    record_property("schedules", count)
    assert count > 3000


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


def test_seed_replays() -> None:
    first, second = schedules.random_walk(Lab(), 11), schedules.random_walk(Lab(), 11)
    assert first.steps == second.steps
    assert first.ends == second.ends
    assert first.world.applied == second.world.applied
