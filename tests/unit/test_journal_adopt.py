"""Adopting a journal: whatever checkpoint comes, epochs never go back, and whoever drove before is fenced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.journals import DRIVER, QUERY, Driver, Store, a_claim, claimed, decided

from exactsink.contract import Fenced, LineageError
from exactsink.protocol.journal.log import Log, fenced_by
from exactsink.protocol.journal.records import Claim, Note, decode

OTHER = "query-2"


def a_journal(epochs: int) -> tuple[Store, Driver]:
    """A claimed journal in which this many epochs are decided."""
    store = Store()
    journal = claimed(store)
    for epoch in range(epochs):
        journal.decide(decided(epoch))
    store.puts.clear()
    return store, journal


def bound(log: Log) -> tuple[str | None, int, int]:
    """Return which query a journal is bound to, the epoch of its batch 0, and the next new epoch."""
    return log.query_id, log.base, log.next_epoch


# the epochs


def test_until_it_is_adopted_a_journals_epochs_are_its_querys_batches() -> None:
    assert bound(Log()) == (None, 0, 0)
    store, journal = a_journal(0)
    assert bound(journal.log) == (QUERY, 0, 0)
    journal.decide(decided(0))
    journal.decide(decided(1))
    assert bound(journal.log) == bound(Driver(store).read()) == (QUERY, 0, 2)
    Driver(store).claim(QUERY, DRIVER)
    assert bound(Driver(store).read()) == (QUERY, 0, 2)


@pytest.mark.parametrize(
    ("epochs", "next_batch", "base", "first"),
    [
        pytest.param(0, 0, 0, 0, id="an empty journal, a fresh checkpoint"),
        pytest.param(0, 7, 0, 7, id="an empty journal, a checkpoint at batch 7"),
        pytest.param(5, 0, 5, 5, id="a fresh checkpoint"),
        pytest.param(5, 7, 0, 7, id="a checkpoint that is further on, at batch 7"),
        pytest.param(12, 7, 5, 12, id="a checkpoint that is further back, at batch 7"),
        pytest.param(7, 7, 0, 7, id="a checkpoint that is where the journal is"),
    ],
)
def test_the_adopted_querys_next_batch_is_never_an_epoch_that_was_before(
    epochs: int, next_batch: int, base: int, first: int
) -> None:
    store, journal = a_journal(epochs)
    decision = journal.log.decision
    claim = journal.adopt(OTHER, next_batch, "operator")
    assert (claim.base, claim.first_epoch) == (base, first)
    assert claim.base + next_batch == claim.first_epoch >= epochs  # that batch is the one new epoch that is taken
    for log in (journal.log, Driver(store).read()):
        assert bound(log) == (OTHER, base, first)
        assert log.decision == decision


def test_after_adopting_epochs_go_on_one_by_one_through_every_later_claim() -> None:
    store, journal = a_journal(5)
    journal.adopt(OTHER, 0, "operator")
    for epoch in range(5, 9):
        driver = Driver(store)
        claim = driver.claim(OTHER, DRIVER)
        assert (claim.base, claim.first_epoch) == (5, 5)
        assert bound(driver.log) == (OTHER, 5, epoch)
        driver.decide(decided(epoch, claim.generation))
        assert bound(driver.log) == bound(Driver(store).read()) == (OTHER, 5, epoch + 1)


def test_adopting_twice_never_goes_back_behind_the_first() -> None:
    store, journal = a_journal(5)
    journal.adopt(OTHER, 40, "operator")
    claim = journal.adopt("query-3", 0, "operator")  # nothing was decided between
    assert (claim.base, claim.first_epoch) == (40, 40)
    journal.decide(decided(40))
    claim = journal.adopt("query-4", 3, "operator")
    assert (claim.base, claim.first_epoch) == (38, 41)
    assert bound(Driver(store).read()) == ("query-4", 38, 41)


# the query


def test_the_adopted_query_may_claim_and_the_old_one_no_more() -> None:
    store, journal = a_journal(1)
    journal.adopt(OTHER, 0, "operator")
    with pytest.raises(LineageError, match=f"belongs to query {OTHER}"):
        Driver(store).claim(QUERY, DRIVER)
    assert Driver(store).claim(OTHER, DRIVER).generation == 3


def test_an_empty_query_id_binds_to_the_next_that_claims_and_then_to_no_other() -> None:
    store, journal = a_journal(3)
    journal.adopt("", 0, "operator")
    assert bound(Driver(store).read()) == ("", 3, 3)
    claim = Driver(store).claim(OTHER, DRIVER)
    assert (claim.query_id, claim.base, claim.first_epoch) == (OTHER, 3, 3)
    assert bound(Driver(store).read()) == (OTHER, 3, 3)
    with pytest.raises(LineageError, match=f"belongs to query {OTHER}"):
        Driver(store).claim(QUERY, DRIVER)


def test_a_refused_query_is_reported_of_adopt() -> None:
    store, _ = a_journal(1)
    with pytest.raises(LineageError) as refused:
        Driver(store).claim(OTHER, DRIVER)
    assert "exactsink adopt JOB.toml" in refused.value.next


# the claim


def test_adopting_is_a_claim_that_fences_older_drivers_and_keeps_the_lineage() -> None:
    store, journal = a_journal(2)
    older = journal.log.claims[-1]
    claim = journal.adopt(OTHER, 0, "operator")
    assert (claim.generation, claim.driver, claim.lineage) == (2, "operator", older.lineage)
    assert claim.token != older.token
    assert decode(store.entries[claim.seq]) == claim
    fenced = fenced_by(Driver(store).read(), older)
    assert fenced is not None
    assert "operator" in str(fenced)
    assert fenced_by(Driver(store).read(), claim) is None


def test_a_driver_that_was_overtaken_adopts_nothing() -> None:
    store, journal = a_journal(2)
    Driver(store).claim(QUERY, "host:2")
    before = sorted(store.entries)
    with pytest.raises(Fenced, match="host:2"):
        journal.adopt(OTHER, 0, "operator")
    assert sorted(store.entries) == before
    assert bound(Driver(store).read()) == (QUERY, 0, 2)


def test_adopting_goes_behind_an_operators_note() -> None:
    store, journal = a_journal(2)
    store.before_put = [store.come_first(Note("by hand", nonce="a"))]
    claim = journal.adopt(OTHER, 0, "operator")
    assert (claim.seq, claim.before) == (4, 3)
    assert journal.log == Driver(store).read()
    assert bound(journal.log) == (OTHER, 2, 2)


@pytest.mark.parametrize("lost", [True, False], ids=["its answer is lost", "it is refused at first"])
def test_adopting_stands_once_whatever_the_store_answers(lost: bool) -> None:
    store, journal = a_journal(2)
    store.before_put = [store.lose_answer if lost else store.refuse]
    claim = journal.adopt(OTHER, 0, "operator")
    assert [c.token for c in Driver(store).read().claims] == [journal.log.claims[0].token, claim.token]
    assert len(store.entries) == 4


def test_a_claim_that_lands_in_a_hole_after_adopting_does_not_unbind_it() -> None:
    """A stalled driver of the old query, whose claim comes late: it is void, and reading anew it is refused."""
    store, journal = a_journal(4)
    journal.adopt(OTHER, 0, "operator")
    store.delete([2])
    store.lists = [lambda seqs: [0, 1]]
    with pytest.raises(LineageError, match=f"belongs to query {OTHER}"):
        Driver(store).claim(QUERY, "host:2")
    assert isinstance(decode(store.entries[2]), Claim)
    assert bound(Driver(store).read()) == (OTHER, 4, 4)


def test_a_claim_beside_adopting_goes_behind_it_or_fences_it() -> None:
    store, journal = a_journal(2)
    store.before_put = [store.come_first(replace(a_claim(), base=2, first_epoch=2, query_id=OTHER))]
    with pytest.raises(LineageError, match=f"belongs to query {OTHER}"):
        Driver(store).claim(QUERY, DRIVER)
    with pytest.raises(Fenced):
        journal.adopt("query-3", 0, "operator")
    assert bound(Driver(store).read()) == (OTHER, 2, 2)
