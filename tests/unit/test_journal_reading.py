"""What a log folds to, what opening a journal reads of it, and how stale answers of a store are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import pytest
from tests.unit.journals import QUERY, Driver, Store, claimed, committables, decided, redecided

from exactsink.contract import Fatal, Retryable
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Decision, Log, extended
from exactsink.protocol.journal.records import Note, Record


class StaleStore(Store):
    """Lacks some seqs that stand: each next listing others, and the reads up to the one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.lacking: list[set[int]] = []
        self.reads_too = True
        self._absent: set[int] = set()

    def list(self) -> Sequence[int]:
        self._absent = self.lacking.pop(0) if self.lacking else set()
        return [seq for seq in super().list() if seq not in self._absent]

    def read(self, seq: int) -> bytes | None:
        return None if self.reads_too and seq in self._absent else super().read(seq)


# folding


def fold(*records: Record) -> Decision:
    log = reduce(extended, [replace(record, seq=seq) for seq, record in enumerate(records)], Log())
    assert log.decision is not None
    return log.decision


def voted(decision: Decision | None, sink: str) -> list[tuple[int, int]]:
    assert decision is not None
    return [(c.txn.generation, c.txn.partition) for c in decision.committables(sink)]


def test_the_latest_redecide_of_a_sink_replaces_its_whole_set_and_no_others() -> None:
    decision = fold(decided(0), redecided(0, 7))
    assert (voted(decision, "lake"), voted(decision, "table")) == ([(2, 7)], [(1, 1)])
    assert (decision.seqs, decision.fingerprint, decision.sinks["lake"].target) == ((0, 1), "input-0", "/lake")
    decision = fold(decided(0), redecided(0, 7), redecided(0, 9, sink="table"), redecided(0, 3, 4))
    assert (voted(decision, "lake"), voted(decision, "table")) == ([(2, 3), (2, 4)], [(2, 9)])
    decision = fold(decided(0), redecided(0, 7), decided(1))
    assert (voted(decision, "lake"), decision.epoch, decision.seqs) == ([(1, 1), (1, 2)], 1, (2,))


@pytest.mark.parametrize("before", [[], [decided(1)]], ids=["alone", "behind a later epoch"])
def test_a_redecide_without_its_decide_is_fatal(before: list[Record]) -> None:
    """Its decide stands as long as it is named: passed over, a sink's decided rows would be forgotten."""
    with pytest.raises(Fatal, match=f"entry {len(before)} replaces votes of epoch 0") as refused:
        fold(*before, redecided(0, 7))
    assert "from a copy" in refused.value.next


def test_the_refs_of_a_decision_are_those_of_its_latest_sets() -> None:
    """The sweep spares exactly these: what a redecide has replaced is no longer decided."""
    decision = fold(decided(0), redecided(0, 7))
    assert decision.refs("lake") == {c.ref for c in committables(7, generation=2)}
    assert decision.refs("table") == {c.ref for c in committables(1, sink="table")}
    assert decision.refs("no such sink") == frozenset()


# opening


def redecided_journal() -> StaleStore:
    """A claim (0), a decide (1), its redecide (2), and the next driver's claim (3), which names both."""
    store = StaleStore()
    claimed(store, epochs=1).redecide(redecided(0, 7))
    claimed(store)
    return store


def test_a_record_names_the_decisions_as_it_leaves_it_and_the_claim_or_note_before_it() -> None:
    store = redecided_journal()
    journal = claimed(store)
    journal.keep(Note("swept manually"))
    journal.decide(decided(1))
    records = store.records().values()
    assert [record.names for record in records] == [(), (1,), (1, 2), (1, 2), (1, 2), (1, 2), (6,)]
    assert [record.before for record in records] == [-1, 0, 0, 0, 3, 4, 5]


def long_journal(epochs: int) -> tuple[Store, Driver]:
    """Two claims and a note, then one decide after another."""
    store = Store()
    claimed(store).keep(Note("swept manually"))
    return store, claimed(store, epochs)


def reads(store: Store, journal: Journal) -> list[int]:
    store.reads.clear()
    journal.read()
    return sorted(store.reads)


@pytest.mark.parametrize("epochs", [10, 2000])
def test_opening_reads_the_newest_entry_what_it_names_and_the_anchors(epochs: int) -> None:
    """So it does not grow with the epochs: four reads for these three anchors, whatever stands between."""
    store, journal = long_journal(epochs)
    newest, fresh = epochs + 2, Driver(store)
    assert reads(store, fresh) == [0, 1, 2, newest]
    assert fresh.log == journal.log
    journal.redecide(redecided(epochs - 1, 7))
    assert reads(store, Driver(store)) == [0, 1, 2, newest, newest + 1]
    Driver(store).claim(QUERY, "host:3")
    assert reads(store, Driver(store)) == [0, 1, 2, newest, newest + 1, newest + 2]
    assert Driver(store).read().decision == journal.log.decision


def test_a_handle_that_has_read_before_reads_new_anchors_only() -> None:
    store, journal = long_journal(10)
    handle = Driver(store)
    handle.read()
    assert reads(store, handle) == [12]
    successor = claimed(store)
    successor.keep(Note("swept manually"))
    successor.decide(decided(10))
    assert [reads(store, handle), reads(store, handle)] == [[13, 14, 15], [15]]
    assert handle.log == Driver(store).read() == successor.log
    successor.keep(Note("the newest entry is an anchor"))
    assert reads(store, handle) == reads(store, handle) == [15, 16]
    assert handle.log == Driver(store).read()
    assert [anchor.seq for anchor in handle.log.anchors] == [0, 1, 2, 13, 14, 16]
    assert reads(store, journal) == [13, 14, 15, 16]


def test_an_anchor_that_is_none_is_fatal() -> None:
    store, _ = long_journal(3)
    store.add(replace(decided(3), seq=6, names=(6,), before=5))
    with pytest.raises(Fatal, match="entry 5 is no claim"):
        Driver(store).read()


# stale answers

LACKING = ({0}, {1}, {2}, {1, 2}, {0, 1, 2})
ACTS: list[Callable[[Driver], object]] = [lambda j: j.read(), lambda j: j.claim(QUERY, "host:3")]


@pytest.mark.parametrize("lacking", LACKING, ids=str)
@pytest.mark.parametrize("times", [1, 4])
def test_a_log_that_lacks_a_named_record_is_read_again(lacking: set[int], times: int) -> None:
    store = redecided_journal()
    store.lacking = [lacking] * times
    journal = Driver(store)
    log = journal.read()
    assert voted(log.decision, "lake") == [(2, 7)]
    assert (log.last_seq, len(journal.waits)) == (3, times)


@pytest.mark.parametrize("act", ACTS, ids=["read", "claim"])
@pytest.mark.parametrize("lacking", LACKING, ids=str)
def test_a_log_that_goes_on_lacking_a_named_record_is_never_used(
    lacking: set[int], act: Callable[[Driver], object]
) -> None:
    store = redecided_journal()
    store.lacking = [lacking] * 99
    journal = Driver(store)
    with pytest.raises(Retryable, match="lacks records"):
        act(journal)
    assert journal.log.last_seq == -1
    assert sorted(store.entries) == [0, 1, 2, 3]


def test_records_deleted_while_they_are_read_are_passed_over() -> None:
    store = Store()
    journal = claimed(store, epochs=3)
    store.before_read = [lambda seq: store.delete([1, 2])]
    assert Driver(store).read() == journal.log
    assert sorted(store.entries) == [0, 3]


def test_a_newest_entry_that_is_deleted_before_it_is_read_is_looked_for_again() -> None:
    """Another driver went on, and deleted what was the last decision when this one listed."""
    store, journal = long_journal(3)

    def go_on(seq: int) -> None:
        journal.decide(decided(3))
        store.delete([seq])

    store.before_read = [go_on]
    reader = Driver(store)
    assert (reader.read(), reader.waits) == (replace(journal.log, standing=6), [0])
    assert 5 not in store.entries
