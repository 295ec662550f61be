"""The journal's rules: which claim stands, and who owns a seq after any answer of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from exactsink.errors import Fenced, LineageError, PreflightError, Retryable
from exactsink.journal.journal import Journal
from exactsink.journal.log import Log, fenced_by
from exactsink.journal.records import Claim, Decide, DecidedSink, Note, Record, Redecide, decode, encode
from exactsink.journal.store import JournalStore, SeqTaken
from exactsink.model import Committable, Txn

QUERY, DRIVER = "query-1", "host:1"


class Store:
    """Entries in memory. `before_put` and `before_read` hold what goes wrong in the next calls, one each."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.puts: list[Record] = []
        self.before_put: list[Callable[[Record], None]] = []
        self.before_read: list[Callable[[int], None]] = []
        self.lists: list[Callable[[list[int]], Sequence[int]]] = []

    def put(self, seq: int, data: bytes) -> None:
        record = decode(data)
        assert record.seq == seq
        self.puts.append(record)
        if self.before_put:
            self.before_put.pop(0)(record)
        if seq in self.entries:
            raise SeqTaken(seq)
        self.entries[seq] = data

    def read(self, seq: int) -> bytes | None:
        if self.before_read:
            self.before_read.pop(0)(seq)
        return self.entries.get(seq)

    def list(self) -> Sequence[int]:
        seqs = list(self.entries)
        return self.lists.pop(0)(seqs) if self.lists else seqs

    def delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.entries.pop(seq, None)

    def add(self, record: Record) -> Record:
        self.entries[record.seq] = encode(record)
        return record

    # what goes wrong

    def refuse(self, call: object) -> None:
        raise ConnectionError("refused")

    def lose_answer(self, record: Record) -> None:
        self.entries.setdefault(record.seq, encode(record))
        raise ConnectionError("no answer")

    def come_first(self, record: Record) -> Callable[[Record], None]:
        def put(mine: Record) -> None:
            self.add(replace(record, seq=mine.seq))

        return put


class Driver(Journal):
    """A journal, and how often it paused."""

    def __init__(self, store: JournalStore, keep_epochs: int = 1000) -> None:
        self.waits: list[int] = []
        super().__init__(store, keep_epochs=keep_epochs, wait=self.waits.append)


def claimed(store: Store) -> Driver:
    journal = Driver(store)
    journal.claim(QUERY, DRIVER)
    store.puts.clear()
    return journal


def committables(*partitions: int, epoch: int = 0, sink: str = "lake", generation: int = 1) -> tuple[Committable, ...]:
    return tuple(Committable(Txn("job", epoch, sink, generation, "ab", p, p), p, b"") for p in partitions)


def decided(epoch: int, generation: int = 1) -> Decide:
    sinks = {
        "lake": DecidedSink("files", "rename", "/lake", committables(1, 2, epoch=epoch)),
        "table": DecidedSink("upsert", "staged", "/table", committables(1, epoch=epoch, sink="table")),
    }
    return Decide(epoch, generation, f"input-{epoch}", sinks)


def a_claim(generation: int = 2, driver: str = "host:2") -> Claim:
    return Claim(generation, "cafe", driver, QUERY, "ab", nonce="other")


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
    newer = store.add(replace(a_claim(generation=5), seq=9))
    store.lists = [lambda seqs: [0]]
    claim = Driver(store).claim(QUERY, DRIVER)
    assert (claim.seq, claim.generation) == (10, 6)
    assert sorted(store.entries) == [0, 1, 9, 10]
    assert decode(store.entries[9]) == newer


def test_a_claim_whose_answer_is_lost_stands_once() -> None:
    store = Store()
    store.before_put = [store.lose_answer]
    claim = Driver(store).claim(QUERY, DRIVER)
    assert (claim.generation, sorted(store.entries)) == (1, [0])


def test_an_older_driver_is_told_who_fences_it() -> None:
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
    assert [put.seq for put in store.puts] == [1, 2, 3]
    assert journal.log == Driver(store).read()
    assert journal.log.decision is not None


@pytest.mark.parametrize("other", [a_claim(), replace(decided(0), nonce="other")], ids=["claim", "decide"])
@pytest.mark.parametrize("record", [decided(1), Redecide(0, "lake", 1, committables(3))], ids=["decide", "redecide"])
def test_another_drivers_record_at_my_seq_fences_me(record: Decide | Redecide, other: Record) -> None:
    store = Store()
    journal = claimed(store)
    journal.decide(decided(0))
    store.before_put = [store.come_first(other)]
    with pytest.raises(Fenced) as fenced:
        journal.decide(record) if isinstance(record, Decide) else journal.redecide(record)
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
