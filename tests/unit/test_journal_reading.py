"""What a log folds to, what opening a journal reads of it, and how stale answers of a store are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from tests.unit.journals import QUERY, Driver, Store, claimed, committables, decided

from exactsink.contract import Committable, Fatal, Retryable, Txn
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Decision, Log, extended
from exactsink.protocol.journal.records import Decide, DecidedSink, Record, Redecide, decode
from exactsink.protocol.journal.stores.local import LocalStore


class StaleStore(LocalStore):
    """A local store that lacks some seqs that stand: each next listing others, and the reads up to the one after it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lacking: list[set[int]] = []
        self.reads_too = True
        self._absent: set[int] = set()

    def list(self) -> Sequence[int]:
        self._absent = self.lacking.pop(0) if self.lacking else set()
        return [seq for seq in super().list() if seq not in self._absent]

    def read(self, seq: int) -> bytes | None:
        return None if self.reads_too and seq in self._absent else super().read(seq)


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
def test_a_redecide_without_its_decide_is_fatal(before: list[Record]) -> None:
    """Its decide stands as long as it is named: passed over, a sink's decided rows would be forgotten."""
    with pytest.raises(Fatal, match=f"entry {len(before)} replaces votes of epoch 0") as refused:
        fold(in_order(*before, a_redecide(0, 7)))
    assert "from a copy" in refused.value.next


def test_a_redecide_whose_decide_is_deleted_is_never_passed_over(tmp_path: Path) -> None:
    store = redecided_journal(tmp_path)
    store.delete([1])
    for act in (lambda j: j.read(), lambda j: j.claim(QUERY, "host:3")):
        with pytest.raises(Retryable, match="lacks records"):
            act(a_journal(store))
    assert sorted(store.list()) == [0, 2, 3]


def test_the_refs_of_a_decision_are_those_of_its_latest_sets() -> None:
    """The sweep spares exactly these: what a redecide has replaced is no longer decided."""
    decision = fold(in_order(a_decide(0), a_redecide(0, 7))).decision
    assert decision is not None
    assert decision.refs("lake") == {c.ref for c in votes(0, 7, generation=2)}
    assert decision.refs("table") == {c.ref for c in votes(0, 1, sink="table")}
    assert decision.refs("no such sink") == frozenset()


# opening


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


def test_a_record_names_the_newest_claim_or_note_before_it(tmp_path: Path) -> None:
    store = redecided_journal(tmp_path)
    journal = a_journal(store)
    journal.claim(QUERY, "host:3")
    journal.note("by hand")
    journal.decide(a_decide(1))
    assert [decode(store.read(seq) or b"").before for seq in range(7)] == [-1, 0, 0, 0, 3, 4, 5]


def long_journal(epochs: int) -> tuple[Store, Driver]:
    """Two claims and a note, then one decide after another."""
    store = Store()
    claimed(store).note("by hand")
    journal = claimed(store)
    for epoch in range(epochs):
        journal.decide(decided(epoch))
    return store, journal


def reads(store: Store, journal: Journal) -> list[int]:
    store.reads.clear()
    journal.read()
    return store.reads


@pytest.mark.parametrize("epochs", [10, 2000])
def test_opening_reads_the_newest_entry_what_it_names_and_the_anchors(epochs: int) -> None:
    """So it does not grow with the epochs: four reads for these three anchors, whatever stands between."""
    store, journal = long_journal(epochs)
    newest, fresh = epochs + 2, Driver(store)
    assert sorted(reads(store, fresh)) == [0, 1, 2, newest]
    assert fresh.log == journal.log
    journal.redecide(Redecide(epochs - 1, "lake", 1, committables(7, epoch=epochs - 1)))
    assert sorted(reads(store, Driver(store))) == [0, 1, 2, newest, newest + 1]
    Driver(store).claim(QUERY, "host:3")
    assert sorted(reads(store, Driver(store))) == [0, 1, 2, newest, newest + 1, newest + 2]
    assert Driver(store).read().decision == journal.log.decision


def test_a_handle_that_has_read_before_reads_new_anchors_only() -> None:
    store, journal = long_journal(10)
    handle = Driver(store)
    handle.read()
    assert sorted(reads(store, handle)) == [12]
    successor = Driver(store)
    successor.claim(QUERY, "host:3")
    successor.note("by hand")
    successor.decide(decided(10))
    assert sorted(reads(store, handle)) == [13, 14, 15]
    assert sorted(reads(store, handle)) == [15]
    assert handle.log == Driver(store).read() == successor.log
    successor.note("the newest entry is an anchor")
    assert sorted(reads(store, handle)) == sorted(reads(store, handle)) == [15, 16]
    assert handle.log == Driver(store).read()
    assert [anchor.seq for anchor in handle.log.anchors] == [0, 1, 2, 13, 14, 16]
    assert sorted(reads(store, journal)) == [13, 14, 15, 16]


def test_an_anchor_that_is_none_is_fatal() -> None:
    store, _ = long_journal(3)
    store.add(replace(decided(3), seq=6, names=(6,), before=5))
    with pytest.raises(Fatal, match="entry 5 is no claim"):
        Driver(store).read()


# stale answers


LACKING = ({0}, {1}, {2}, {1, 2}, {0, 1, 2})


@pytest.mark.parametrize("lacking", LACKING, ids=str)
@pytest.mark.parametrize("times", [1, 4])
def test_a_log_that_lacks_a_named_record_is_read_again(tmp_path: Path, lacking: set[int], times: int) -> None:
    store, waits = redecided_journal(tmp_path), list[int]()
    store.lacking = [lacking] * times
    log = a_journal(store, waits=waits).read()
    assert partitions(log.decision, "lake") == [(2, 7)]
    assert (log.last_seq, len(waits)) == (3, times)


@pytest.mark.parametrize("lacking", LACKING, ids=str)
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


@pytest.mark.parametrize("lacking", LACKING, ids=str)
def test_a_listing_that_lacks_what_its_newest_entry_names_is_enough(tmp_path: Path, lacking: set[int]) -> None:
    store, waits = redecided_journal(tmp_path), list[int]()
    whole = a_journal(store).read()
    store.lacking, store.reads_too = [lacking], False
    log = a_journal(store, waits=waits).read()
    assert (replace(log, standing=4), waits) == (whole, [])


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

    reader = a_journal(Deleting(tmp_path))
    assert reader.read() == journal.log
    assert sorted(store.list()) == [0, 3]
    assert [record.seq for record in reader.history()] == [0, 3]


def test_a_newest_entry_that_is_deleted_before_it_is_read_is_looked_for_again() -> None:
    """Another driver went on, and deleted what was the last decision when this one listed."""
    store, journal = long_journal(3)
    waits: list[int] = []

    def go_on(seq: int) -> None:
        journal.decide(decided(3))
        store.delete([seq])

    store.before_read = [go_on]
    log = Journal(store, wait=waits.append).read()
    assert (log, waits) == (replace(journal.log, standing=6), [0])
    assert 5 not in store.entries
