"""A reader beside the simulated drivers: whatever dies, stalls or is lost, all sinks hold what it cuts them at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Log
from exactsink.reader import complete_epoch
from tests.simulation import schedules
from tests.simulation.drivers import Run
from tests.simulation.schedules import Lab
from tests.simulation.world import JOB, Violation, World
from tests.unit.journals import Store

FAMILIES = (schedules.lost_and_crashed, schedules.interleaved)
Cut = Callable[[Log, State | None], int | None]


class _Entries(Store):
    """A journal's entries, read beside the schedule."""

    def __init__(self, entries: Mapping[int, bytes]) -> None:
        super().__init__()
        self.entries = dict(entries)


def _reads(patch: pytest.MonkeyPatch, cut: Cut) -> list[int]:
    """Let a reader look after every call that changes something; return the epochs that it finds."""
    found: list[int] = []
    real = World.call

    def call(self: World, *given: Any, reads: bool = False) -> Any:
        try:
            return real(self, *given, reads=reads)
        finally:
            if not reads and self.entries:
                log = Journal(_Entries(self.entries), wait=lambda _: None).read()
                epoch = cut(log, next(reversed(self.states[JOB]), None))
                if epoch is not None:
                    found.append(epoch)
                    if lacking := self.expected(epoch + 1) - self.applied:
                        raise Violation(f"a reader cuts at epoch {epoch}, and {sorted(lacking)} do not show")

    patch.setattr(World, "call", call)
    return found


def _walks(lab: Lab) -> Iterator[Run]:
    return schedules.random_walks(lab, range(40))


@pytest.mark.parametrize(
    "family",
    [_walks, *(pytest.param(f, marks=pytest.mark.proof) for f in FAMILIES)],
    ids=lambda family: family.__name__,
)
def test_all_sinks_hold_what_a_reader_cuts_them_at(
    family: Callable[[Lab], Iterator[Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _reads(monkeypatch, complete_epoch)
    last = max(run.world.source.done for run in family(Lab(sample=211)))
    assert max(found) == last, "it lags, and gets there"


def test_a_reader_that_takes_what_is_decided_for_complete_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _reads(monkeypatch, lambda log, state: log.decision.epoch if log.decision else None)
    with pytest.raises(Violation, match="a reader cuts at epoch"):
        list(_walks(Lab()))
