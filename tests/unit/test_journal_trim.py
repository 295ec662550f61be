"""What trimming leaves of a journal; and the history that people read of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.journals import QUERY, Driver, Store, decided, redecided

from exactsink.protocol.journal.records import Note


def long_journal(keep_epochs: int, epochs: int) -> tuple[Store, Driver]:
    """Two claims, a note, and decides, epoch 1 and the last with a redecide."""
    store = Store()
    first, journal = Driver(store), Driver(store, keep_epochs)
    first.claim(QUERY, "host:1")
    first.keep(Note("swept manually"))
    journal.claim(QUERY, "host:2")
    for epoch in range(epochs):
        journal.decide(decided(epoch))
        if epoch in (1, epochs - 1):
            journal.redecide(redecided(epoch, 7))
    return store, journal


def kinds(store: Store) -> Sequence[str]:
    return [type(record).__name__ for record in store.records().values()]


def epoch_seqs(store: Store) -> Sequence[int]:
    """Return the seqs of decides and redecides that stand."""
    return [seq for seq, record in store.records().items() if type(record).__name__.endswith("ecide")]


def test_trimming_keeps_claims_notes_and_the_newest_epochs_and_the_log_as_it_was() -> None:
    store, journal = long_journal(keep_epochs=10, epochs=30)
    before, entries = journal.log, dict(store.entries)
    journal.trim()
    assert list(store.entries) == [0, 1, 2, *range(25, 35)]
    assert kinds(store) == ["Claim", "Note", "Claim", *["Decide"] * 9, "Redecide"]
    assert store.entries.items() <= entries.items()
    after = Driver(store).read()
    assert after == journal.log
    assert (after.anchors, after.decision, after.last_seq) == (before.anchors, before.decision, before.last_seq)
    assert (after.standing, before.standing) == (13, 35)
    claim = Driver(store).claim(QUERY, "host:3")
    assert (claim.generation, claim.seq, claim.lineage) == (3, 35, before.lineage)


def test_trimming_waits_until_a_tenth_more_than_is_kept_stands() -> None:
    store, journal = long_journal(keep_epochs=10, epochs=9)  # 11 records of epochs
    journal.trim()
    assert len(store.entries) == 14
    journal.decide(decided(9))
    journal.trim()
    assert epoch_seqs(store) == list(range(5, 15))


def test_the_last_decision_is_kept_even_when_no_epoch_is() -> None:
    store, journal = long_journal(keep_epochs=0, epochs=4)
    decision = journal.log.decision
    journal.trim()
    assert kinds(store) == ["Claim", "Note", "Claim", "Decide", "Redecide"]
    assert Driver(store).read().decision == decision
    assert decision is not None
    assert [c.txn.partition for c in decision.committables("lake")] == [7]


@pytest.mark.parametrize("keep_epochs", [0, 3])
def test_trimming_never_deletes_what_came_after_this_handles_last_entry(keep_epochs: int) -> None:
    """A stalled driver trims when it wakes: by then others may have claimed, noted and decided."""
    store, stalled = long_journal(keep_epochs, epochs=9)
    last = stalled.log.last_seq
    successor, operator = Driver(store), Driver(store)
    successor.claim(QUERY, "host:3")
    for epoch in range(9, 15):
        successor.decide(decided(epoch, generation=3))
    operator.claim(QUERY, "host:4")
    operator.keep(Note("swept manually"))
    operator.decide(decided(15, generation=4))
    before = Driver(store).read()
    stalled.trim()
    log = Driver(store).read()
    assert (log.anchors, log.decision, log.last_seq) == (before.anchors, before.decision, before.last_seq)
    mine = [0, 1, 2, *range(last + 1 - max(2, keep_epochs), last + 1)]  # of its own it did delete
    assert list(store.entries) == [*mine, *range(last + 1, last + 11)]


# history


def test_the_history_is_all_that_stands_in_its_order() -> None:
    store, journal = long_journal(keep_epochs=10, epochs=30)
    journal.trim()
    assert list(Driver(store).history()) == list(store.records().values())
    assert list(Driver(Store()).history()) == []


def test_the_history_passes_over_what_is_deleted_while_it_is_read() -> None:
    store, journal = long_journal(keep_epochs=3, epochs=9)
    store.before_read = [lambda seq: journal.trim()]
    assert [record.seq for record in Driver(store).history()] == [0, 1, 2, *epoch_seqs(store)]
    assert len(epoch_seqs(store)) == 3
