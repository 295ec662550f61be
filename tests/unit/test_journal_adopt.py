"""Adopting a journal: whatever checkpoint comes, epochs never go back, and whoever drove before is fenced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.journals import DRIVER, QUERY, Driver, Store, a_claim, claimed, decided

from exactsink.contract import Fenced, LineageError
from exactsink.protocol.journal.log import Log, fenced_by

OTHER = "query-2"


@pytest.fixture
def store() -> Store:
    return Store()


def bound(log: Log) -> tuple[str | None, int, int]:
    """Return which query a journal is bound to, the epoch of its batch 0, and the next new epoch."""
    return log.query_id, log.base, log.next_epoch


# the epochs


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
    store: Store, epochs: int, next_batch: int, base: int, first: int
) -> None:
    journal = claimed(store, epochs)
    decision = journal.log.decision
    claim = journal.adopt(OTHER, next_batch, "operator")
    assert (claim.base, claim.first_epoch) == (base, first)
    assert claim.base + next_batch == claim.first_epoch >= epochs  # that batch is the one new epoch that is taken
    for log in (journal.log, Driver(store).read()):
        assert bound(log) == (OTHER, base, first)
        assert log.decision == decision


def test_after_adopting_epochs_go_on_one_by_one_through_every_later_claim(store: Store) -> None:
    claimed(store, epochs=5).adopt(OTHER, 0, "operator")
    for epoch in range(5, 9):
        driver = Driver(store)
        claim = driver.claim(OTHER, DRIVER)
        assert (claim.base, claim.first_epoch) == (5, 5)
        assert bound(driver.log) == (OTHER, 5, epoch)
        driver.decide(decided(epoch, claim.generation))
        assert bound(driver.log) == bound(Driver(store).read()) == (OTHER, 5, epoch + 1)


def test_adopting_twice_never_goes_back_behind_the_first(store: Store) -> None:
    journal = claimed(store, epochs=5)
    journal.adopt(OTHER, 40, "operator")
    claim = journal.adopt("query-3", 0, "operator")  # nothing was decided between
    assert (claim.base, claim.first_epoch) == (40, 40)
    journal.decide(decided(40))
    claim = journal.adopt("query-4", 3, "operator")
    assert (claim.base, claim.first_epoch) == (38, 41)
    assert bound(Driver(store).read()) == ("query-4", 38, 41)


# the query


@pytest.mark.parametrize("adopted", [OTHER, ""], ids=["the checkpoint's", "whichever claims next"])
def test_the_adopted_query_may_claim_and_the_old_one_no_more(store: Store, adopted: str) -> None:
    claimed(store, epochs=3).adopt(adopted, 0, "operator")
    assert bound(Driver(store).read()) == (adopted, 3, 3)
    claim = Driver(store).claim(OTHER, DRIVER)
    assert (claim.generation, claim.query_id, claim.base, claim.first_epoch) == (3, OTHER, 3, 3)
    with pytest.raises(LineageError, match=f"belongs to query {OTHER}"):
        Driver(store).claim(QUERY, DRIVER)
    assert bound(Driver(store).read()) == (OTHER, 3, 3)


# the claim


def test_adopting_is_a_claim_that_fences_older_drivers_and_keeps_the_lineage(store: Store) -> None:
    journal = claimed(store, epochs=2)
    older = journal.log.claims[-1]
    claim = journal.adopt(OTHER, 0, "operator")
    assert (claim.generation, claim.driver, claim.lineage) == (2, "operator", older.lineage)
    assert claim.token != older.token
    assert store.records()[claim.seq] == claim
    fenced = fenced_by(Driver(store).read(), older)
    assert fenced is not None
    assert "operator" in str(fenced)
    assert fenced_by(Driver(store).read(), claim) is None


def test_a_claim_that_an_adoption_overtakes_is_refused(store: Store) -> None:
    journal = claimed(store, epochs=2)
    store.before_put = [store.come_first(replace(a_claim(), base=2, first_epoch=2, query_id=OTHER))]
    with pytest.raises(LineageError, match=f"belongs to query {OTHER}"):
        Driver(store).claim(QUERY, DRIVER)
    with pytest.raises(Fenced):
        journal.adopt("query-3", 0, "operator")
    assert bound(Driver(store).read()) == (OTHER, 2, 2)
