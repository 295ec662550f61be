"""What trimming leaves of a journal, on the local store; and the history that people read of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.journals import QUERY, Driver, committables, decided

from exactsink.protocol.journal.records import Claim, Redecide, decode
from exactsink.protocol.journal.stores.local import LocalStore


def a_redecide(epoch: int) -> Redecide:
    return Redecide(epoch, "lake", 2, committables(7, epoch=epoch, generation=2))


def kinds(store: LocalStore) -> dict[int, str]:
    return {seq: type(decode(store.read(seq) or b"")).__name__ for seq in sorted(store.list())}


def long_journal(folder: Path, keep_epochs: int, epochs: int) -> tuple[LocalStore, Driver]:
    """Two claims, a note, and decides, epoch 1 and the last with a redecide."""
    store = LocalStore(folder)
    first, journal = Driver(store), Driver(store, keep_epochs)
    first.claim(QUERY, "host:1")
    first.note("by hand")
    journal.claim(QUERY, "host:2")
    for epoch in range(epochs):
        journal.decide(decided(epoch))
        if epoch in (1, epochs - 1):
            journal.redecide(a_redecide(epoch))
    return store, journal


def epoch_seqs(store: LocalStore) -> Sequence[int]:
    """Return the seqs of decides and redecides that stand."""
    return [seq for seq, kind in kinds(store).items() if kind.endswith("ecide")]


def test_trimming_keeps_claims_notes_and_the_newest_epochs_with_their_redecides(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=10, epochs=30)
    before = {seq: store.read(seq) for seq in store.list()}
    journal.trim()
    newest = list(range(25, 35))  # nine decides and the last one's redecide
    assert sorted(store.list()) == [0, 1, 2, *newest]
    assert list(kinds(store).values()) == ["Claim", "Note", "Claim", *["Decide"] * 9, "Redecide"]
    assert {seq: store.read(seq) for seq in store.list()} == {seq: before[seq] for seq in [0, 1, 2, *newest]}


def test_a_trimmed_journal_folds_to_the_same_claims_and_decision(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=10, epochs=30)
    before = journal.log
    journal.trim()
    after = Driver(store).read()
    assert after == journal.log
    assert (after.claims, after.decision, after.last_seq) == (before.claims, before.decision, before.last_seq)
    assert after.notes == before.notes != ()
    assert (after.standing, before.standing) == (13, 35)
    claim = Driver(store).claim(QUERY, "host:3")
    assert (claim.generation, claim.seq, claim.lineage) == (3, 35, before.lineage)


def test_trimming_waits_until_a_tenth_more_than_is_kept_stands(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=10, epochs=9)  # 11 records of epochs
    stood = sorted(store.list())
    journal.trim()
    assert sorted(store.list()) == stood
    journal.decide(decided(9))
    journal.trim()
    assert epoch_seqs(store) == list(range(5, 15))
    assert len(store.list()) < len(stood)


def test_the_last_decision_is_kept_even_when_no_epoch_is(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=0, epochs=4)
    decision = journal.log.decision
    journal.trim()
    assert list(kinds(store).values()) == ["Claim", "Note", "Claim", "Decide", "Redecide"]
    log = Driver(store).read()
    assert log.decision == decision
    assert decision is not None
    assert [c.txn.partition for c in decision.committables("lake")] == [7]


def test_a_journal_goes_on_after_trimming(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=2, epochs=9)
    for epoch in range(9, 20):
        journal.trim()
        journal.decide(decided(epoch))
        assert Driver(store).read() == journal.log
    assert isinstance(decode(store.read(0) or b""), Claim)
    assert journal.log.decision is not None
    assert journal.log.decision.epoch == 19
    assert len(epoch_seqs(store)) <= 3


@pytest.mark.parametrize("keep_epochs", [0, 3])
def test_trimming_never_deletes_what_came_after_this_handles_last_entry(tmp_path: Path, keep_epochs: int) -> None:
    """A stalled driver trims when it wakes: by then others may have claimed, noted and decided."""
    store, stalled = long_journal(tmp_path, keep_epochs, epochs=9)
    last = stalled.log.last_seq
    successor, operator = Driver(store), Driver(store)
    successor.claim(QUERY, "host:3")
    for epoch in range(9, 15):
        successor.decide(decided(epoch, generation=3))
    operator.claim(QUERY, "host:4")
    operator.note("by hand")
    operator.decide(decided(15, generation=4))
    after = [seq for seq in sorted(store.list()) if seq > last]
    before = Driver(store).read()
    stalled.trim()
    stands = sorted(store.list())
    assert [seq for seq in stands if seq > last] == after == list(range(last + 1, last + 11))
    log = Driver(store).read()
    assert (log.anchors, log.decision, log.last_seq) == (before.anchors, before.decision, before.last_seq)
    mine = [seq for seq in stands if seq <= last]
    assert mine == [0, 1, 2, *range(last + 1 - max(2, keep_epochs), last + 1)]  # and of its own it did delete


# history


def test_the_history_is_all_that_stands_in_its_order(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=10, epochs=30)
    journal.trim()
    history = Driver(store).history()
    assert [record.seq for record in history] == [0, 1, 2, *range(25, 35)]
    assert [type(record).__name__ for record in history] == list(kinds(store).values())
    assert list(history) == [decode(store.read(record.seq) or b"") for record in history]


def test_the_history_passes_over_what_is_deleted_while_it_is_read(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=3, epochs=9)

    class Trimmed(LocalStore):
        def read(self, seq: int) -> bytes | None:
            journal.trim()
            return super().read(seq)

    assert [record.seq for record in Driver(Trimmed(tmp_path)).history()] == [0, 1, 2, *epoch_seqs(store)]
    assert len(epoch_seqs(store)) == 3


def test_a_journal_that_does_not_exist_has_no_history(tmp_path: Path) -> None:
    assert list(Driver(LocalStore(tmp_path / "journal")).history()) == []
