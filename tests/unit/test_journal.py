"""The journal's rules: which claim stands, and who owns a seq after any answer of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.unit.journals import DRIVER, QUERY, Driver, Store, a_claim, claimed, decided, redecided, whole

from exactsink.contract import Fenced, LineageError, PreflightError, Retryable
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Log, fenced_by
from exactsink.protocol.journal.records import Claim, Decide, Note, Record


@pytest.fixture
def store() -> Store:
    return Store()


# claims


def test_each_claim_is_a_generation_higher_with_a_token_of_its_own_in_the_lineage_of_the_first(store: Store) -> None:
    assert (Driver(store).read(), Log().lineage, Log().query_id) == (Log(), "", None)
    drivers = [Driver(store) for _ in range(3)]
    claims = [driver.claim(QUERY, f"host:{n}") for n, driver in enumerate(drivers)]
    assert [(c.seq, c.generation, c.driver, c.query_id) for c in claims] == [
        (n, n + 1, f"host:{n}", QUERY) for n in range(3)
    ]
    assert len({c.token for c in claims}) == len({c.nonce for c in claims}) == 3
    assert {c.lineage for c in claims} == {claims[0].token} == {driver.log.lineage for driver in drivers}
    fenced = fenced_by(Driver(store).read(), claims[1])
    assert fenced is not None
    assert "host:2" in str(fenced)
    assert fenced_by(Driver(store).read(), claims[2]) is None


def test_a_claim_of_another_query_is_refused_and_leaves_nothing(store: Store) -> None:
    claimed(store)
    with pytest.raises(LineageError, match=f"{QUERY}.*query-2") as refused:
        Driver(store).claim("query-2", DRIVER)
    assert "exactsink adopt JOB.toml" in refused.value.next
    assert (store.puts, len(store.entries)) == ([], 1)


def test_a_claim_that_another_overtakes_goes_behind_it(store: Store) -> None:
    first = claimed(store)
    store.before_put = [store.come_first(a_claim(generation=2))]
    claim = Driver(store).claim(QUERY, DRIVER)
    assert (claim.seq, claim.generation) == (2, 3)
    assert fenced_by(first.read(), claim) is None


@pytest.mark.parametrize("newest", [2, 9])
def test_a_claim_that_lands_in_a_hole_is_void_and_in_nobodys_chain(store: Store, newest: int) -> None:
    """Deletion leaves holes; a driver that was stalled between its listing and its put can land in one.

    Its token proves nothing: what a driver of that token holds is not an older claim's of this journal.
    """
    older = claimed(store)
    newer = store.add(replace(a_claim(generation=5), seq=newest, before=0))
    store.lists = [lambda seqs: [0]]
    stalled = Driver(store)
    claim = stalled.claim(QUERY, DRIVER)
    assert (claim.seq, claim.generation) == (newest + 1, 6)
    assert list(store.entries) == [0, newest, 1, newest + 1]
    assert store.records()[newest] == newer
    void = store.records()[1]
    assert isinstance(void, Claim)
    assert void.generation == 2
    stalled.decide(decided(0, generation=6))
    older.read()
    for log in (stalled.whole(), whole(store), older.whole()):
        assert [(c.seq, c.generation) for c in log.claims] == [(0, 1), (newest, 5), (newest + 1, 6)]
        assert void.token not in {c.token for c in log.claims}


# appending


APPENDS: Mapping[str, Callable[[Journal], object]] = {
    "claim": lambda journal: journal.claim(QUERY, DRIVER),
    "decide": lambda journal: journal.decide(decided(1)),
    "redecide": lambda journal: journal.redecide(redecided(0, 3)),
    "note": lambda journal: journal.keep(Note("swept manually")),
    "adopt": lambda journal: journal.adopt("query-2", 0, DRIVER),
}


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
@pytest.mark.parametrize("bad_reads", [0, 1, 3])
def test_my_own_nonce_after_a_lost_answer_is_success(
    store: Store, append: Callable[[Journal], object], bad_reads: int
) -> None:
    journal = claimed(store, epochs=1)
    store.before_put = [store.lose_answer] * 5
    if append is not APPENDS["claim"]:  # it reads before it puts
        store.before_read = [store.refuse] * bad_reads
    append(journal)
    assert sorted(store.entries) == [0, 1, 2]
    assert journal.log == Driver(store).read()


def test_an_absent_entry_is_appended_again_as_the_same_record(store: Store) -> None:
    journal = claimed(store)
    store.before_put = [store.refuse] * 4
    journal.decide(decided(0))
    assert len(store.puts) == 5
    assert all(put == store.puts[0] for put in store.puts)  # the same nonce: a late one of them is still my own
    assert len(journal.waits) == 4


def test_a_note_is_kept_in_its_place_whoever_wrote_it_and_leaves_the_decision_as_it_is(store: Store) -> None:
    journal = claimed(store, epochs=1)
    journal.keep(Note("first"))
    store.before_put = [store.come_first(Note("an operator's", nonce=n)) for n in "ab"]
    journal.decide(decided(1))
    log = Driver(store).read()
    assert journal.log == log
    notes = [(note.seq, note.text) for note in log.anchors if isinstance(note, Note)]
    assert notes == [(2, "first"), (3, "an operator's"), (4, "an operator's")]
    assert [(record.names, record.before) for record in store.records().values()] == [
        ((), -1),
        ((1,), 0),
        ((1,), 0),
        ((), 2),
        ((), 3),
        ((5,), 4),
    ]
    assert log.decision is not None
    assert log.decision.epoch == 1


FENCING = {"claim": a_claim(), "decide": replace(decided(0), nonce="other")}


@pytest.mark.parametrize("other", FENCING.values(), ids=FENCING)
@pytest.mark.parametrize("append", [append for name, append in APPENDS.items() if name != "claim"])
def test_another_drivers_record_at_my_seq_fences_me(
    store: Store, append: Callable[[Journal], object], other: Record
) -> None:
    journal = claimed(store, epochs=1)
    store.before_put = [store.come_first(other)]
    before = journal.log
    with pytest.raises(Fenced) as fenced:
        append(journal)
    assert journal.log == before
    assert isinstance(other, Decide) or "host:2" in str(fenced.value)
    assert sorted(store.entries) == [0, 1, 2]
    assert store.records()[2].nonce == "other"


def test_what_nothing_settles_is_retryable_and_the_seq_is_not_given_up(store: Store) -> None:
    journal = claimed(store)
    store.before_put, store.before_read = [store.refuse] * 99, [store.refuse] * 99
    before = journal.log
    with pytest.raises(Retryable) as unsettled:
        journal.decide(decided(0))
    assert "refused" in unsettled.value.why
    assert journal.log == before
    assert len(store.puts) > 1
    assert {(put.seq, put.nonce) for put in store.puts} == {(1, store.puts[0].nonce)}
    store.before_put, store.before_read = [], []
    store.add(store.puts[0])  # the answer comes late: the next claim finds the epoch decided
    successor = Driver(store)
    assert successor.claim(QUERY, "host:2").seq == 2
    assert successor.log.decision is not None


def test_a_store_that_refuses_for_good_is_not_asked_again(store: Store) -> None:
    refusal = PreflightError("no hard links")

    def refuse(record: Record) -> None:
        raise refusal

    store.before_put = [refuse] * 9
    with pytest.raises(PreflightError) as refused:
        Driver(store).claim(QUERY, DRIVER)
    assert refused.value is refusal
    assert len(store.puts) == 1


def test_a_handle_without_the_newest_claim_appends_nothing(store: Store) -> None:
    old, new, reader = claimed(store), claimed(store), Driver(store)
    old.read()
    with pytest.raises(Fenced):
        old.keep(Note("too late"))
    reader.read()
    with pytest.raises(RuntimeError, match="claimed before anything is appended"):
        reader.keep(Note("in passing"))
    assert (store.puts, [kept for kept in new.read().anchors if isinstance(kept, Note)]) == ([], [])
