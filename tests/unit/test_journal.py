"""The journal's rules: which claim stands, and who owns a seq after any answer of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.unit.journals import DRIVER, QUERY, Driver, Store, a_claim, claimed, committables, decided

from exactsink.contract import Fenced, LineageError, PreflightError, Retryable
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Log, fenced_by
from exactsink.protocol.journal.records import Claim, Decide, Note, Record, Redecide, decode

# claims


def test_the_first_claim_names_the_journal_and_binds_it_to_its_query() -> None:
    store = Store()
    journal = Driver(store)
    assert (journal.read(), journal.log.lineage, journal.log.query_id) == (Log(), "", None)
    claim = journal.claim(QUERY, DRIVER)
    assert (claim.generation, claim.seq, claim.driver, claim.query_id) == (1, 0, DRIVER, QUERY)
    assert claim.lineage == claim.token != ""
    assert (journal.log.lineage, journal.log.query_id) == (claim.token, QUERY)


def test_each_claim_is_a_generation_higher_with_a_token_of_its_own_and_the_same_lineage() -> None:
    store = Store()
    claims = [Driver(store).claim(QUERY, DRIVER) for _ in range(3)]
    assert [claim.generation for claim in claims] == [1, 2, 3]
    assert len({claim.token for claim in claims}) == len({claim.nonce for claim in claims}) == 3
    assert {claim.lineage for claim in claims} == {claims[0].token}


def test_a_claim_of_another_query_is_refused_and_leaves_nothing() -> None:
    store = Store()
    claimed(store)
    with pytest.raises(LineageError) as refused:
        Driver(store).claim("query-2", DRIVER)
    assert QUERY in str(refused.value)
    assert "query-2" in str(refused.value)
    assert store.puts == []
    assert len(store.entries) == 1


def test_a_claim_that_another_overtakes_goes_behind_it() -> None:
    store = Store()
    first = claimed(store)
    store.before_put = [store.come_first(a_claim(generation=2))]
    claim = Driver(store).claim(QUERY, DRIVER)
    assert (claim.seq, claim.generation) == (2, 3)
    assert fenced_by(first.read(), claim) is None


def test_a_claim_that_lands_in_a_hole_is_void() -> None:
    """Deletion leaves holes; a driver that was stalled between its listing and its put can land in one."""
    store = Store()
    claimed(store)
    newer = store.add(replace(a_claim(generation=5), seq=9, before=0))
    store.lists = [lambda seqs: [0]]
    claim = Driver(store).claim(QUERY, DRIVER)
    assert (claim.seq, claim.generation) == (10, 6)
    assert sorted(store.entries) == [0, 1, 9, 10]
    assert decode(store.entries[9]) == newer


def test_a_void_claim_in_a_hole_is_in_nobodys_chain() -> None:
    """Its token proves nothing: what a driver of that token holds is not an older claim's of this journal."""
    store = Store()
    older = claimed(store)
    store.add(replace(a_claim(generation=5), seq=9, before=0))
    store.lists = [lambda seqs: [0]]
    stalled = Driver(store)
    claim = stalled.claim(QUERY, DRIVER)
    void = decode(store.entries[1])
    assert isinstance(void, Claim)
    assert void.generation == 2
    stalled.decide(decided(0, generation=6))
    for log in (stalled.log, stalled.read(), Driver(store).read(), older.read()):
        assert [(c.seq, c.generation) for c in log.claims] == [(0, 1), (9, 5), (10, claim.generation)]
        assert void.token not in {c.token for c in log.claims}


def test_a_claim_whose_answer_is_lost_stands_once() -> None:
    store = Store()
    store.before_put = [store.lose_answer]
    claim = Driver(store).claim(QUERY, DRIVER)
    assert (claim.generation, sorted(store.entries)) == (1, [0])


def test_an_older_driver_is_reported_who_fences_it() -> None:
    store = Store()
    mine = Driver(store).claim(QUERY, DRIVER)
    assert fenced_by(Driver(store).read(), mine) is None
    Driver(store).claim(QUERY, "host:2")
    fenced = fenced_by(Driver(store).read(), mine)
    assert fenced is not None
    assert "host:2" in str(fenced)


# appending


def test_a_decision_stands_with_the_next_seq_and_names_itself() -> None:
    store = Store()
    journal = claimed(store)
    journal.decide(decided(0))
    assert (store.puts[0].seq, store.puts[0].names) == (1, (1,))
    assert journal.log == Driver(store).read()
    assert journal.log.decision is not None
    assert (journal.log.decision.epoch, journal.log.decision.fingerprint) == (0, "input-0")


@pytest.mark.parametrize("bad_reads", [0, 1, 3])
def test_my_own_nonce_after_a_lost_answer_is_success(bad_reads: int) -> None:
    store = Store()
    journal = claimed(store)
    store.before_put, store.before_read = [store.lose_answer] * 5, [store.refuse] * bad_reads
    journal.decide(decided(0))
    assert sorted(store.entries) == [0, 1]
    assert journal.log == Driver(store).read()


def test_an_absent_entry_is_appended_again_as_the_same_record() -> None:
    store = Store()
    journal = claimed(store)
    store.before_put = [store.refuse] * 4
    journal.decide(decided(0))
    assert len(store.puts) == 5
    assert all(put == store.puts[0] for put in store.puts)  # the same nonce: a late one of them is still my own
    assert len(journal.waits) == 4


def test_behind_an_operators_note_the_next_seq_is_mine() -> None:
    store = Store()
    journal = claimed(store)
    store.before_put = [store.come_first(Note("swept by hand", nonce=n)) for n in ("a", "b")]
    journal.decide(decided(0))
    assert [(put.seq, put.before) for put in store.puts] == [(1, 0), (2, 1), (3, 2)]
    assert journal.log == Driver(store).read()
    assert journal.log.decision is not None
    assert [(note.seq, note.nonce) for note in journal.log.notes] == [(1, "a"), (2, "b")]


def test_a_note_is_kept_in_its_place_and_leaves_the_decision_as_it_is() -> None:
    store = Store()
    journal = claimed(store)
    journal.decide(decided(0))
    journal.note("first")
    store.before_put = [store.come_first(Note("an operator's", nonce="a"))]
    journal.note("second")
    journal.decide(decided(1))
    log = Driver(store).read()
    assert journal.log == log
    assert [(note.seq, note.text) for note in log.notes] == [(2, "first"), (3, "an operator's"), (4, "second")]
    assert [decode(store.entries[seq]).names for seq in (2, 4, 5)] == [(1,), (1,), (5,)]
    assert log.decision is not None
    assert log.decision.epoch == 1


def test_a_note_whose_answer_is_lost_stands_once() -> None:
    store = Store()
    journal = claimed(store)
    store.before_put = [store.lose_answer]
    journal.note("once")
    assert [note.text for note in Driver(store).read().notes] == ["once"]
    assert sorted(store.entries) == [0, 1]


APPENDS: Mapping[str, Callable[[Journal], object]] = {
    "decide": lambda journal: journal.decide(decided(1)),
    "redecide": lambda journal: journal.redecide(Redecide(0, "lake", 1, committables(3))),
    "note": lambda journal: journal.note("swept by hand"),
    "adopt": lambda journal: journal.adopt("query-2", 0, DRIVER),
}


@pytest.mark.parametrize("other", [a_claim(), replace(decided(0), nonce="other")], ids=["claim", "decide"])
@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_another_drivers_record_at_my_seq_fences_me(append: Callable[[Journal], object], other: Record) -> None:
    store = Store()
    journal = claimed(store)
    journal.decide(decided(0))
    store.before_put = [store.come_first(other)]
    before = journal.log
    with pytest.raises(Fenced) as fenced:
        append(journal)
    assert journal.log == before
    assert isinstance(other, Decide) or "host:2" in str(fenced.value)
    assert sorted(store.entries) == [0, 1, 2]
    assert decode(store.entries[2]).nonce == "other"


def test_what_nothing_settles_is_retryable_and_the_seq_is_not_given_up() -> None:
    store = Store()
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


def test_a_store_that_refuses_for_good_is_not_asked_again() -> None:
    store = Store()
    refusal = PreflightError("no hard links")

    def refuse(record: Record) -> None:
        raise refusal

    store.before_put = [refuse] * 9
    with pytest.raises(PreflightError) as refused:
        Driver(store).claim(QUERY, DRIVER)
    assert refused.value is refusal
    assert len(store.puts) == 1


def test_a_claim_that_nothing_settles_is_retryable() -> None:
    store = Store()
    store.before_put = [store.refuse] * 999
    with pytest.raises(Retryable):
        Driver(store).claim(QUERY, DRIVER)
    assert store.entries == {}


def test_a_handle_without_a_claim_appends_nothing() -> None:
    store = Store()
    driver = Driver(store)
    driver.claim("query", "a")
    stranger = Driver(store)
    stranger.read()
    with pytest.raises(RuntimeError, match="claimed before anything is appended"):
        stranger.note("in passing")
    assert driver.read().notes == ()


def test_a_handle_that_has_read_a_newer_claim_is_fenced_before_it_writes() -> None:
    store = Store()
    old, new = Driver(store), Driver(store)
    old.claim("query", "a")
    new.claim("query", "b")
    old.read()
    with pytest.raises(Fenced):
        old.note("too late")
    assert new.read().notes == ()
