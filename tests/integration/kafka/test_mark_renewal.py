"""A mark's birth and its renewal: one driver at a time, and neither ever puts an epoch's mark back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from exactsink.contract import Committed, Mark
from exactsink_kafka.wire import Wire
from tests.integration.kafka.marked import BIRTH, LINEAGE, SCHEMA, Site, rows


def test_an_older_driver_s_renewal_is_fenced_and_never_puts_the_mark_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stalls right after it has read the mark; meanwhile a newer driver renews, and commits an epoch."""
    site.born()
    newer = site.session("bbbbbbbbbbbb", 2)
    now = Mark(LINEAGE, 0, frozenset(["bbbbbbbbbbbb"]))
    with site.wire() as wire:
        older = site.keeper(wire)
        _stall_once(wire, monkeypatch, "write_offset", lambda: newer.commit(0, newer.prepare(0, [rows("newer")])))
        assert older._write_again(birth=False) is None
        assert site.mark() == now
        older.renew()
        assert site.mark() == now


@pytest.mark.parametrize("at", ["write_offset", "ongoing"])
@pytest.mark.parametrize("committed", [True, False])
def test_a_renewal_that_is_late_but_not_fenced_gives_way_to_an_epoch(
    site: Site, monkeypatch: pytest.MonkeyPatch, at: str, committed: bool
) -> None:
    """The newer driver has renewed before: between the older one's look and its write it only commits an epoch."""
    site.born()
    newer = site.session("bbbbbbbbbbbb", 2)
    ticket = newer.open(0, SCHEMA)
    votes = []

    def epoch() -> None:
        votes.append(newer.write(0, 0, ticket, rows("newer")))
        if committed:
            assert newer.commit(0, votes) == [Committed()]

    with site.wire() as wire:
        _stall_once(wire, monkeypatch, at, epoch)
        assert site.keeper(wire)._write_again(birth=False) is None
    if not committed:
        assert newer.commit(0, votes) == [Committed()]
    assert site.mark() == Mark(LINEAGE, 0, frozenset(["bbbbbbbbbbbb"]))


def test_the_mark_is_renewed_once_under_a_claim_and_after_a_day_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.born()
    taken: list[str] = []
    with closing(site.committer()) as committer:
        take, now = committer._wire.take, 1000.0
        monkeypatch.setattr("exactsink_kafka.group.time.monotonic", lambda: now)
        monkeypatch.setattr(committer._wire, "take", lambda name: taken.append(name) or take(name))
        for epoch, later in enumerate((0, 60, 86_000, 500)):
            now += later
            committer.open_epoch(epoch, SCHEMA, 1)
    assert taken == [f"{site.job}.out.mark"] * 2
    assert site.mark() == BIRTH


def test_a_sink_that_no_journal_has_bound_is_not_marked_by_a_renewal(site: Site) -> None:
    with closing(site.committer()) as committer:
        committer.open_epoch(0, SCHEMA, 1)
        assert committer.mark() is None


def _stall_once(wire: Wire, monkeypatch: pytest.MonkeyPatch, at: str, meanwhile: Callable[[], object]) -> None:
    """Do something before the next call of a method, once."""
    call, done = getattr(wire, at), []

    def stalled(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            meanwhile()
        return call(*arguments)

    monkeypatch.setattr(wire, at, stalled)
