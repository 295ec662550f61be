"""What a log folds to, how a stale listing is met, and what trimming leaves, on the local store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

from exactsink.errors import Retryable
from exactsink.journal.journal import Journal
from exactsink.journal.log import Decision, Log, extended
from exactsink.journal.records import Claim, Decide, DecidedSink, Note, Record, Redecide, decode, encode
from exactsink.journal.store import LocalStore
from exactsink.model import Committable, Txn

QUERY = "query-1"


class StaleStore(LocalStore):
    """A local store whose next listings each lack some seqs that stand."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lacking: list[set[int]] = []

    def list(self) -> Sequence[int]:
        lacking = self.lacking.pop(0) if self.lacking else set()
        return [seq for seq in super().list() if seq not in lacking]


def a_journal(store: LocalStore, keep_epochs: int = 1000, waits: list[int] | None = None) -> Journal:
    return Journal(store, keep_epochs=keep_epochs, wait=([] if waits is None else waits).append)


def votes(epoch: int, *partitions: int, sink: str = "lake", generation: int = 1) -> tuple[Committable, ...]:
    return tuple(Committable(Txn("job", epoch, sink, generation, "ab", p, p), p, b"") for p in partitions)


def a_decide(epoch: int) -> Decide:
    sinks = {
        "lake": DecidedSink("files", "rename", "/lake", votes(epoch, 1, 2)),
        "table": DecidedSink("upsert", "staged", "/table", votes(epoch, 1, sink="table")),
    }
    return Decide(epoch, 1, f"input-{epoch}", sinks)


def a_redecide(epoch: int, *partitions: int, sink: str = "lake") -> Redecide:
    return Redecide(epoch, sink, 2, votes(epoch, *partitions, sink=sink, generation=2))


def partitions(decision: Decision | None, sink: str) -> list[tuple[int, int]]:
    assert decision is not None
    return [(c.txn.generation, c.txn.partition) for c in decision.committables(sink)]


def kinds(store: LocalStore) -> dict[int, str]:
    return {seq: type(decode(store.read(seq) or b"")).__name__ for seq in sorted(store.list())}


# folding


def fold(records: Sequence[Record]) -> Log:
    return reduce(extended, records, Log())


def in_order(*records: Record) -> list[Record]:
    return [replace(record, seq=seq) for seq, record in enumerate(records)]


def test_a_redecide_replaces_its_sinks_whole_set_and_no_other() -> None:
    log = fold(in_order(a_decide(0), a_redecide(0, 7)))
    assert partitions(log.decision, "lake") == [(2, 7)]
    assert partitions(log.decision, "table") == [(1, 1)]
    assert log.decision is not None
    assert (log.decision.seqs, log.decision.fingerprint) == ((0, 1), "input-0")
    assert log.decision.sinks["lake"].target == "/lake"


def test_of_several_redecides_of_a_sink_the_latest_holds() -> None:
    log = fold(in_order(a_decide(0), a_redecide(0, 7), a_redecide(0, 9, sink="table"), a_redecide(0, 3, 4)))
    assert partitions(log.decision, "lake") == [(2, 3), (2, 4)]
    assert partitions(log.decision, "table") == [(2, 9)]


def test_the_next_epochs_decision_begins_anew() -> None:
    log = fold(in_order(a_decide(0), a_redecide(0, 7), a_decide(1)))
    assert partitions(log.decision, "lake") == [(1, 1), (1, 2)]
    assert log.decision is not None
    assert (log.decision.epoch, log.decision.seqs) == (1, (2,))


@pytest.mark.parametrize("before", [[], [a_decide(1)]], ids=["alone", "behind a later epoch"])
def test_a_redecide_whose_decide_is_deleted_decides_nothing(before: list[Record]) -> None:
    assert fold(in_order(*before, a_redecide(0, 7))).decision == fold(in_order(*before)).decision


def test_the_refs_of_a_decision_are_those_of_its_latest_sets() -> None:
    """The sweep spares exactly these: what a redecide has replaced is no longer decided."""
    decision = fold(in_order(a_decide(0), a_redecide(0, 7))).decision
    assert decision is not None
    assert decision.refs("lake") == {c.ref for c in votes(0, 7, generation=2)}
    assert decision.refs("table") == {c.ref for c in votes(0, 1, sink="table")}
    assert decision.refs("no such sink") == frozenset()


# stale listings


def redecided_journal(folder: Path) -> StaleStore:
    """A claim (0), a decide (1), its redecide (2), and the next driver's claim (3), which names both."""
    store = StaleStore(folder)
    journal = a_journal(store)
    journal.claim(QUERY, "host:1")
    journal.decide(a_decide(0))
    journal.redecide(a_redecide(0, 7))
    a_journal(store).claim(QUERY, "host:2")
    return store


def test_a_record_names_those_of_the_decision_as_it_leaves_it(tmp_path: Path) -> None:
    store = redecided_journal(tmp_path)
    assert [decode(store.read(seq) or b"").names for seq in range(4)] == [(), (1,), (1, 2), (1, 2)]


@pytest.mark.parametrize("lacking", [{1}, {2}, {1, 2}], ids=str)
@pytest.mark.parametrize("times", [1, 4])
def test_a_log_that_lacks_a_named_record_is_read_again(tmp_path: Path, lacking: set[int], times: int) -> None:
    store, waits = redecided_journal(tmp_path), list[int]()
    store.lacking = [lacking] * times
    log = a_journal(store, waits=waits).read()
    assert partitions(log.decision, "lake") == [(2, 7)]
    assert (log.last_seq, len(waits)) == (3, times)


@pytest.mark.parametrize("lacking", [{1}, {2}, {1, 2}], ids=str)
def test_a_log_that_goes_on_lacking_a_named_record_is_never_used(tmp_path: Path, lacking: set[int]) -> None:
    store = redecided_journal(tmp_path)
    for act in (lambda j: j.read(), lambda j: j.claim(QUERY, "host:3")):
        store.lacking = [lacking] * 99
        journal = a_journal(store)
        with pytest.raises(Retryable, match="lacks records"):
            act(journal)
        assert journal.log.last_seq == -1
    store.lacking = []
    assert sorted(store.list()) == [0, 1, 2, 3]


def test_records_deleted_while_they_are_read_are_passed_over(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    journal = a_journal(store)
    journal.claim(QUERY, "host:1")
    for epoch in range(3):
        journal.decide(a_decide(epoch))

    class Deleting(LocalStore):
        def read(self, seq: int) -> bytes | None:
            self.delete([1, 2])
            return super().read(seq)

    log = a_journal(Deleting(tmp_path)).read()
    assert log == replace(journal.log, epoch_seqs={2: (3,)})


# trimming


def long_journal(folder: Path, keep_epochs: int, epochs: int) -> tuple[LocalStore, Journal]:
    """Two claims, a note, and decides, epoch 1 and the last with a redecide."""
    store = LocalStore(folder)
    a_journal(store).claim(QUERY, "host:1")
    store.put(1, encode(Note("by hand", seq=1, nonce="n")))
    journal = a_journal(store, keep_epochs)
    journal.claim(QUERY, "host:2")
    for epoch in range(epochs):
        journal.decide(a_decide(epoch))
        if epoch in (1, epochs - 1):
            journal.redecide(a_redecide(epoch, 7))
    return store, journal


def test_trimming_keeps_claims_notes_and_the_newest_epochs_with_their_redecides(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=10, epochs=30)
    before = {seq: store.read(seq) for seq in store.list()}
    journal.trim()
    newest = list(range(24, 35))  # ten decides and the last one's redecide
    assert sorted(store.list()) == [0, 1, 2, *newest]
    assert list(kinds(store).values()) == ["Claim", "Note", "Claim", *["Decide"] * 10, "Redecide"]
    assert {seq: store.read(seq) for seq in store.list()} == {seq: before[seq] for seq in [0, 1, 2, *newest]}


def test_a_trimmed_journal_folds_to_the_same_claims_and_decision(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=10, epochs=30)
    before = journal.log
    journal.trim()
    after = a_journal(store).read()
    assert after == journal.log
    assert (after.claims, after.decision, after.last_seq) == (before.claims, before.decision, before.last_seq)
    assert sorted(after.epoch_seqs) == list(range(20, 30))
    claim = a_journal(store).claim(QUERY, "host:3")
    assert (claim.generation, claim.seq, claim.lineage) == (3, 35, before.lineage)


def test_trimming_waits_until_a_tenth_more_than_is_kept_stands(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=10, epochs=11)
    stood = sorted(store.list())
    journal.trim()
    assert sorted(store.list()) == stood
    journal.decide(a_decide(11))
    journal.trim()
    assert sorted(journal.log.epoch_seqs) == list(range(2, 12))
    assert len(store.list()) < len(stood)


def test_the_last_decision_is_kept_even_when_no_epoch_is(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=0, epochs=4)
    journal.trim()
    assert list(kinds(store).values()) == ["Claim", "Note", "Claim", "Decide", "Redecide"]
    assert partitions(a_journal(store).read().decision, "lake") == [(2, 7)]


def test_a_journal_goes_on_after_trimming(tmp_path: Path) -> None:
    store, journal = long_journal(tmp_path, keep_epochs=2, epochs=9)
    for epoch in range(9, 20):
        journal.trim()
        journal.decide(a_decide(epoch))
    assert isinstance(decode(store.read(0) or b""), Claim)
    log = a_journal(store).read()
    assert log.decision is not None
    assert log.decision.epoch == 19
    assert len(log.epoch_seqs) <= 3
