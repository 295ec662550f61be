"""What a log folds to, what opening a journal reads of it, and how stale answers of a store are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import pytest
from tests.unit.journals import QUERY, Driver, Store, claimed, committables, decided, redecided, whole

from exactsink.contract import Committable, Fatal, LineageError, Mark, Retryable, Txn
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Decision, Log, extended
from exactsink.protocol.journal.records import Clean, Expected, Note, Record, Redecide, Resolve


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


@pytest.mark.parametrize("given_up", [False, True])
def test_of_a_set_that_was_replaced_only_the_new_ones_tokens_may_show(given_up: bool) -> None:
    """Also where some were given up: those are proven lost. What stands in a former target stays as it is."""
    now, before, former = Mark("l1", 0, frozenset({"old"}), 2), Mark("l1"), "/former"
    marks = tuple(Expected("lake", target, now, before) for target in (former, "/lake"))
    words = [Resolve("ada", "", 0, "lake", "given-up", (committables(1)[0].ref,), 1)] * given_up
    replaced = Redecide(0, "lake", 2, (Committable(Txn("job", 0, "lake", 2, "cd", 7, 7), 7, b""),))
    decision = fold(replace(decided(0), marks=marks), *words, replaced)
    assert decision.marks == (marks[0], Expected("lake", "/lake", Mark("l1", 0, frozenset({"cd"}), 1), before))


def test_a_decision_is_open_again_once_a_part_of_it_is_replaced() -> None:
    records = [decided(0), Clean(), redecided(0, 7)]
    logs = [reduce(extended, [replace(r, seq=seq) for seq, r in enumerate(records[:n])], Log()) for n in (1, 2, 3)]
    assert [log.decision_is_open for log in logs] == [True, False, True]


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
def test_opening_reads_the_newest_entry_what_it_names_and_the_claim_that_decided(epochs: int) -> None:
    """So it grows neither with the epochs nor with the claims and notes before that one."""
    store, journal = long_journal(epochs)
    newest, fresh = epochs + 2, Driver(store)
    assert reads(store, fresh) == [2, newest - 1, newest]
    assert (fresh.log, fresh.log.is_whole) == (replace(journal.log, anchors=journal.log.claims[-1:]), False)
    journal.redecide(redecided(epochs - 1, 7))
    assert reads(store, Driver(store)) == [2, newest, newest + 1]
    Driver(store).claim(QUERY, "host:3")
    assert reads(store, Driver(store)) == [2, newest, newest + 1, newest + 2]
    assert Driver(store).read().decision == journal.log.decision
    store.reads.clear()
    assert [anchor.seq for anchor in fresh.whole().anchors] == [0, 1, 2]
    assert (store.reads, fresh.whole().is_whole, store.reads) == ([1, 0], True, [1, 0])


def test_a_handle_that_has_read_before_reads_new_anchors_only() -> None:
    store, journal = long_journal(10)
    handle = Driver(store)
    handle.read()
    assert reads(store, handle) == [11, 12]
    successor = claimed(store)
    successor.keep(Note("swept manually"))
    successor.decide(decided(10))
    assert [reads(store, handle), reads(store, handle)] == [[13, 14, 15], [15]], "an anchor beside it is known"
    assert handle.log == Driver(store).read()
    assert whole(store) == successor.whole()
    successor.keep(Note("the newest entry is an anchor"))
    assert reads(store, handle) == reads(store, handle) == [15, 16]
    assert handle.log == Driver(store).read()
    assert [anchor.seq for anchor in handle.whole().anchors] == [0, 1, 2, 13, 14, 16]
    assert reads(store, journal) == [13, 14, 15, 16]


def test_an_anchor_that_is_none_is_fatal() -> None:
    store, _ = long_journal(3)
    store.add(replace(decided(3), seq=6, names=(6,), before=5))
    with pytest.raises(Fatal, match="entry 5 is neither a claim"):
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
    with pytest.raises(Retryable, match="lacks records") as refused:
        act(journal)
    assert "move the journal away, and `exactsink rebase JOB.toml`" in refused.value.next
    assert journal.log.last_seq == -1
    assert sorted(store.entries) == [0, 1, 2, 3]


def test_records_deleted_while_they_are_read_are_passed_over() -> None:
    store = Store()
    journal = claimed(store, epochs=3)
    store.before_read = [lambda seq: store.delete([1])]  # the newest entry's neighbour is never trimmed
    assert Driver(store).read() == journal.log
    assert sorted(store.entries) == [0, 2, 3]


def test_a_newest_entry_that_is_deleted_before_it_is_read_is_looked_for_again() -> None:
    """Another driver went on, and deleted what was the last decision when this one listed."""
    store, journal = long_journal(3)

    def go_on(seq: int) -> None:
        journal.decide(decided(3))
        journal.decide(decided(4))
        store.delete([seq])

    store.before_read = [go_on]
    reader = Driver(store)
    assert (reader.read(), reader.waits) == (replace(journal.log, anchors=journal.log.claims[-1:]), [0])
    assert 5 not in store.entries


# sums


def edited(store: Store, seq: int, old: bytes, new: bytes) -> None:
    assert old in store.entries[seq]
    store.entries[seq] = store.entries[seq].replace(old, new)


@pytest.mark.parametrize("seq", [0, 1, 2, 3])
def test_a_record_that_was_edited_is_refused_though_it_is_valid_json(seq: int) -> None:
    """Whatever is read: the newest entry, a named one, a claim before it, or the neighbour."""
    store = redecided_journal()
    edited(store, seq, b'"at": 1', b'"at": 2')
    with pytest.raises(LineageError, match=f"entry {seq} was changed after it was written"):
        Driver(store).read()


def two_copies() -> tuple[Store, Store]:
    """A journal, and a copy of it that went on by itself."""
    store = redecided_journal()
    copy = Store()
    copy.entries = dict(store.entries)
    for each in (store, copy):
        claimed(each, epochs=2)
    return store, copy


@pytest.mark.parametrize("seq", [4, 5])
def test_an_entry_of_another_copy_is_refused(seq: int) -> None:
    store, copy = two_copies()
    store.entries[seq] = copy.entries[seq]
    with pytest.raises(LineageError, match=f"entry {seq} is not the record that entry"):
        Driver(store).read()


@pytest.mark.parametrize(("epochs", "refusal"), [(3, LineageError), (2, Retryable)], ids=["just behind", "with a gap"])
def test_what_a_stalled_driver_puts_past_the_end_of_a_journal_that_went_back_is_refused(
    epochs: int, refusal: type[Exception]
) -> None:
    store, _ = two_copies()
    stalled = claimed(store, epochs=1)
    store.delete([seq for seq in store.entries if seq > 4])  # an older copy is brought back, and run on
    claimed(store, epochs)
    stalled.decide(decided(1))
    assert max(store.entries) == 9
    with pytest.raises(refusal, match=r"is not the record that entry|lacks records"):
        Driver(store).read()


def test_a_handle_sees_that_the_anchors_it_has_read_are_others_now() -> None:
    store, copy = two_copies()
    handle = Driver(store)
    handle.read()
    store.entries = copy.entries
    claimed(copy)
    with pytest.raises(LineageError, match="is not the record that entry"):
        handle.read()
