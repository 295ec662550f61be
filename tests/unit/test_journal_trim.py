"""What trimming leaves of a journal; and the history that people read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.journals import QUERY, Driver, Store, decided, redecided, whole

from exactsink.protocol.journal.records import Decide, Note


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
    assert whole(store) == journal.whole() == before
    claim = Driver(store).claim(QUERY, "host:3")
    assert (claim.generation, claim.seq, claim.lineage) == (3, 35, before.lineage)


def test_trimming_waits_until_a_tenth_more_than_is_kept_stands_whichever_driver_decides() -> None:
    """Each epoch has a driver of its own: what is due can't be counted by one of them."""
    store, listings = Store(), 0
    for epoch in range(65):
        journal = Driver(store, keep_epochs=20)
        journal.claim(QUERY, "host:1")
        journal.decide(decided(epoch))
        store.lists = [lambda seqs: seqs] * 9
        journal.trim()
        listings += 9 - len(store.lists)
        store.lists = []
        assert len(epoch_seqs(store)) <= 21
    assert (len(epoch_seqs(store)), listings) == (20, 33)


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
    before = whole(store)
    stalled.trim()
    assert whole(store) == before
    mine = [0, 1, 2, *range(last + 1 - max(2, keep_epochs), last + 1)]  # of its own it did delete
    assert list(store.entries) == [*mine, *range(last + 1, last + 11)]


# by bytes


def large(epoch: int, size: int = 10_000) -> Decide:
    record = decided(epoch)
    lake = record.sinks["lake"]
    first, *others = lake.committables
    return replace(record, sinks={"lake": replace(lake, committables=(replace(first, payload=b"x" * size), *others))})


def bytes_of(store: Store) -> int:
    return sum(len(store.entries[seq]) for seq in epoch_seqs(store))


@pytest.mark.parametrize("drivers", [1, 60], ids=["one driver", "a driver for each epoch"])
def test_large_decisions_are_kept_up_to_a_number_of_bytes(drivers: int) -> None:
    """By each epoch's number where all are large; by what a driver has written where not all are."""
    store, keep_bytes = Store(), 300_000
    size = len(str(large(0))) * 4 // 3
    for epoch in range(60):
        if epoch % (60 // drivers) == 0:
            journal = Driver(store, keep_bytes=keep_bytes)
            journal.claim(QUERY, "host:1")
        journal.decide(large(epoch) if epoch % 2 or drivers > 1 else decided(epoch))
        journal.trim()
        assert bytes_of(store) <= keep_bytes + keep_bytes // 10 + 2 * size
    assert bytes_of(store) > keep_bytes - 2 * size
    assert len(whole(store).claims) == drivers
    assert epoch_seqs(store)[-1] == max(store.entries)


def test_the_last_decision_and_all_that_it_names_is_kept_whatever_its_bytes() -> None:
    store = Store()
    journal = Driver(store, keep_bytes=20_000)
    journal.claim(QUERY, "host:1")
    for epoch in range(3):
        journal.decide(large(epoch))
    journal.decide(large(3, size=50_000))
    journal.trim()
    assert [r.epoch for r in store.records().values() if isinstance(r, Decide)] == [2, 3]  # it names its neighbour
    assert Driver(store).read().decision == journal.log.decision
    journal.redecide(replace(redecided(3, 7), committables=large(3).sinks["lake"].committables))
    journal.redecide(redecided(3, 9))
    journal.trim()
    assert kinds(store) == ["Claim", "Decide", "Redecide", "Redecide"]
    assert Driver(store).read().decision == journal.log.decision


def test_trimming_reads_the_claims_among_what_is_kept_and_no_older_ones() -> None:
    store = Store()
    for epoch in range(40):
        journal = Driver(store, keep_epochs=10)
        journal.claim(QUERY, "host:1")
        journal.decide(decided(epoch))
        store.reads.clear()
        journal.trim()
        assert len(store.reads) <= 12
    assert len(whole(store).claims) == 40
    assert len(epoch_seqs(store)) == 10


def test_a_trim_that_dies_in_its_deletion_is_finished_by_the_next_one() -> None:
    """Deleted are the oldest first, so that below a hole nothing but anchors stands."""
    store, journal = long_journal(keep_epochs=10, epochs=30)
    every = store.delete

    def half(seqs: Sequence[int]) -> None:
        every(list(seqs)[: len(seqs) // 2])
        raise ConnectionError("killed")

    store.delete = half  # type: ignore[method-assign, assignment]
    with pytest.raises(ConnectionError):
        journal.trim()
    store.delete = every  # type: ignore[method-assign]
    assert 10 < len(epoch_seqs(store)) < 30
    successor = Driver(store, keep_epochs=10)
    successor.claim(QUERY, "host:3")
    successor.decide(decided(30))
    successor.trim()
    assert len(epoch_seqs(store)) == 10
    assert len(whole(store).anchors) == 4


# history


def test_the_history_is_all_that_stands_in_its_order() -> None:
    store, journal = long_journal(keep_epochs=10, epochs=30)
    journal.trim()
    assert [entry.record for entry in Driver(store).entries()] == list(store.records().values())
    assert list(Driver(Store()).entries()) == []


def test_the_history_passes_over_what_is_deleted_while_it_is_read() -> None:
    store, journal = long_journal(keep_epochs=3, epochs=9)
    store.before_read = [lambda seq: journal.trim()]
    assert [entry.seq for entry in Driver(store).entries()] == [0, 1, 2, *epoch_seqs(store)]
    assert len(epoch_seqs(store)) == 3
