"""Rows that a person gave up: they are missing, no others are, and no replay brings them back."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation.world import SINKS, rows_of
from tests.unit.test_coordinator import Bench, _die

from exactsink.contract import InDoubtError, Retryable
from exactsink.protocol.journal.records import Resolve


def left(bench: Bench, sink: str, lost: int) -> list[tuple[str, tuple[str, ...]]]:
    """Leave epoch 1 decided and in no sink, lose so many participants of one; return these with their rows."""
    bench.driver().run_epoch(bench.batch(0))
    driver = bench.driver(done=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exactsink.protocol.commit.CommitCalls.commit", _die)
        with pytest.raises(Retryable):
            driver.run_epoch(bench.batch(1))
    gone = [p for txn, p in sorted(bench.world.sinks[sink].items()) if txn.epoch == 1][:lost]
    for participant in gone:
        participant.state = "dropped"
    return [(participant.ref, participant.rows) for participant in gone]


def give_up(bench: Bench, sink: str, refs: tuple[str, ...]) -> None:
    journal = bench.journal()
    journal.claim("query", "operator")
    journal.keep(Resolve("ada", "the source has dropped them", 1, sink, "given-up", refs))


def shown(bench: Bench, epochs: int) -> Counter[tuple[str, str]]:
    """Return what is missing, or negative: doubled, of so many epochs."""
    whole = Counter({(sink, row): 1 for sink in SINKS for epoch in range(epochs) for row in rows_of(epoch, "offsets")})
    whole.subtract(bench.world.applied)
    return Counter({key: count for key, count in whole.items() if count})


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize(("lost", "given"), [(1, 1), (2, 1), (2, 2)])
def test_exactly_what_is_given_up_is_missing(sink: str, replayed: bool, lost: int, given: int) -> None:
    bench = Bench()
    gone = left(bench, sink, lost)
    give_up(bench, sink, tuple(ref for ref, _ in gone[:given]))
    if not replayed and lost > given:
        with pytest.raises(InDoubtError):
            bench.driver(done=1)
        return
    driver = bench.driver(done=0 if replayed else 1)
    for epoch in range(1 if replayed else 2, 4):
        driver.run_epoch(bench.batch(epoch))
    bench.driver(done=3).run_epoch(bench.batch(4))
    assert shown(bench, 5) == Counter((sink, row) for _, rows in gone[:given] for row in rows)
