"""How far back a start reads claims and notes: as far as a rule needs, and on to the first claim only for an orphan."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce

import pytest
from tests.unit.fakes import IdleCommitter
from tests.unit.journals import DRIVER, QUERY, Driver, Store, claimed, committables, decided, whole

from exactsink.contract import InDoubt, LineageError, Mark, Retryable, Txn, Undecided
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Decision, Log, extended
from exactsink.protocol.journal.records import (
    BoundSink,
    Claim,
    Clean,
    Complete,
    Expected,
    Identity,
    Kept,
    Redecide,
    Resolve,
)
from exactsink.protocol.sweep import Sweep

MOST = 4
"""Anchors since the last decision after which a start sums up."""


def sinks_of(log: Log) -> frozenset[str]:
    """Name the sinks that a log's open claims hold: the ones that a start's config must have."""
    return frozenset(sink.name for claim in log.open_claims if claim.identity for sink in claim.identity.sinks)


def start(store: Store, sinks: frozenset[str], *, checked: bool = True) -> Driver:
    """Claim as a driver with these sinks does, or as `rebase` does: that one checks no sinks, and sums nothing up."""
    driver = Driver(store, most_anchors=MOST)
    bound = tuple(BoundSink(name, "b", "s", "t") for name in sorted(sinks))
    driver.claim(QUERY, DRIVER, Identity("job", sinks=bound))
    if checked:
        driver.sum_up()
    return driver


def act(chance: random.Random, store: Store) -> str:
    """Let one driver or operator start, and do one thing or none; refused where its sinks lack open ones."""
    log = folded(store)
    deed = chance.choice(["die"] * 5 + ["decide", "redecide", "resolve"] * 2 + ["clean", "rebase"])
    sinks = frozenset(name for name in "abc" if chance.random() < 0.4)
    sinks |= sinks_of(log) if chance.random() < 0.9 else frozenset()
    if deed != "rebase" and not sinks_of(log) <= sinks:
        return "refused"
    driver = start(store, sinks, checked=deed != "rebase")
    decision = log.decision
    if deed == "clean":
        driver.keep(Clean())
    elif deed == "decide":
        driver.decide(replace(decided(log.next_epoch), marks=marks_of(log.next_epoch)))
    elif deed == "rebase":
        marks, keeps = [Expected("lake", "/lake", Mark(chance.choice("xyz")), None)], chance.choice([(), ("lake",)])
        driver.rebase(marks, QUERY, 0, log.next_epoch, DRIVER, keeps)
    elif decision is not None and decision.sinks and deed == "redecide":
        again = committables(chance.randrange(9), epoch=decision.epoch, generation=driver.log.last_generation)
        driver.redecide(Redecide(decision.epoch, "lake", driver.log.last_generation, again))
    elif decision is not None and decision.sinks and deed == "resolve":
        driver.keep(word_on(chance, decision))
    else:
        return "die"
    return deed


def marks_of(epoch: int) -> tuple[Expected]:
    return (Expected("lake", "/lake", Mark("x", epoch, frozenset("t"), 2), Mark("x")),)


def word_on(chance: random.Random, decision: Decision) -> Resolve:
    """Take some participants, or all, for what an operator says of them."""
    outcome, refs = chance.choice(["committed", "lost", "given-up"]), sorted(decision.refs("lake"))
    named = tuple(chance.sample(refs, chance.randint(0, len(refs)))) or tuple(refs)
    return Resolve("me", "seen", decision.epoch, "lake", outcome, named, 0)


def folded(store: Store) -> Log:
    """Fold all records, one after the other: what a log says without any choice of what to read."""
    return reduce(extended, store.records().values(), Log())


def known(log: Log) -> tuple[object, ...]:
    """Return all that the rules take from a log, but who began what a sink lists."""
    claim = (log.lineage, log.last_generation, log.query_id, log.base, log.next_epoch, log.last_seq, log.last_sum)
    return (*claim, log.decision, log.resolved, log.is_complete, sinks_of(log))


def test_what_a_start_reads_says_what_the_whole_log_does() -> None:
    """Random journals: drivers that die, end cleanly, decide and decide again; operators that resolve and rebase."""
    deeds, skipped, summed, complete = set(), 0, 0, 0
    for seed in range(25):
        chance, store = random.Random(seed), Store()
        for _ in range(30):
            deeds.add(act(chance, store))
            log = Driver(store).read()
            every = folded(store)
            assert known(log) == known(every), f"seed {seed}, entry {log.last_seq}"
            found = [mark.now for claim in every.claims for mark in claim.rebased or ()]
            assert log.succeeds == frozenset(mark.lineage for mark in found if mark), f"seed {seed}"
            skipped += not log.is_whole
            summed += not log.is_whole and log.decision is None
        if chance.random() < 0.3:
            start(store, sinks_of(log)).keep(Complete(log.next_epoch - 1))
            for _ in range(2 * MOST):
                start(store, sinks_of(log))
            assert Driver(store).read().is_complete
            complete += 1
    assert deeds == {"die", "clean", "decide", "redecide", "resolve", "rebase", "refused"}
    assert min(skipped, summed, complete) > 5


@pytest.mark.parametrize("ending", [None, Clean()], ids=["dying", "idle"])
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_start_reads_no_more_after_hundreds_of_starts_that_decided_nothing(epochs: int, ending: Kept | None) -> None:
    store, most = Store(), 0
    claimed(store, epochs)
    for _ in range(300):
        store.reads.clear()
        driver = start(store, frozenset("a"))
        most = max(most, len(store.reads))
        if ending is not None:
            driver.keep(ending)
    assert most <= 2 * (MOST + 4), "a start reads its journal twice"
    assert len(whole(store).claims) == 301


def test_a_word_on_the_last_decision_is_read_whatever_number_of_starts_came_since() -> None:
    """So nothing is summed up then: it stays needed until the next decision."""
    store = Store()
    claimed(store, epochs=1).keep(Resolve("me", "seen", 0, "lake", "lost", ("any",), 1))
    for _ in range(3 * MOST):
        start(store, frozenset("a"))
    assert set(Driver(store).read().resolved["lake"].values()) == {"lost"}
    claimed(store).decide(decided(1))
    assert len(Driver(store).read().anchors) == 1


# orphans of claims from before


class Holding(IdleCommitter):
    """A committer of a store that holds participants."""

    def __init__(self, *held: InDoubt) -> None:
        self.held = list(held)

    def in_doubt(self) -> list[InDoubt]:
        return list(self.held)

    def abort(self, undecided: Undecided) -> None:
        self.held = [p for p in self.held if p not in list(undecided)]


def orphan(claim: Claim, partition: int = 7) -> InDoubt:
    return InDoubt.of(Txn("job", 0, "lake", claim.generation, claim.token, partition, 1))


def started_often() -> tuple[Store, Claim, Driver]:
    """Drivers that each decide an epoch; the first one's claim, and the newest driver, which read none of the older."""
    store = Store()
    first = claimed(store).log.claims[0]
    for epoch in range(5):
        claimed(store).decide(decided(epoch))
    newest = claimed(store)
    assert first not in newest.log.claims
    return store, first, newest


@pytest.mark.parametrize("when", ["start", "after an epoch"])
def test_an_orphan_of_an_old_claim_is_proven_undecided_and_nothing_is_read_twice(when: str) -> None:
    store, first, newest = started_often()
    lake, sweep = Holding(orphan(first)), Sweep(Events("job"), newest.whole)
    store.reads.clear()
    call = sweep.older if when == "start" else sweep.losers
    call({"lake": lake}, newest.log, newest.log.claims[-1])
    assert (lake.held, store.reads) == ([], [7, 5, 3, 1, 0])
    lake.held = [orphan(first, 8)]
    call({"lake": lake}, newest.log, newest.log.claims[-1])
    assert (lake.held, len(store.reads)) == ([], 5)


def test_work_of_no_claim_is_refused_once_all_claims_are_read() -> None:
    _, first, newest = started_often()
    foreign = Holding(orphan(replace(first, token="ff")))
    mine, sweep = newest.log.claims[-1], Sweep(Events("job"), newest.whole)
    with pytest.raises(LineageError, match="under a claim that is not an older one"):
        sweep.older({"lake": foreign}, newest.log, mine)
    assert (newest.log.is_whole, len(foreign.held)) == (True, 1)


@pytest.mark.parametrize("damage", ["edited", "absent"])
def test_what_is_read_for_an_orphan_is_checked_as_well(damage: str) -> None:
    store, first, newest = started_often()
    if damage == "edited":
        store.add(replace(store.records()[1], at=1.0))
    else:
        store.delete([1])
    lake, refusal = Holding(orphan(first)), LineageError if damage == "edited" else Retryable
    with pytest.raises(refusal, match=r"entry 1 is not the record that entry 3|lacks records"):
        Sweep(Events("job"), newest.whole).older({"lake": lake}, newest.log, newest.log.claims[-1])
    assert len(lake.held) == 1
    assert Driver(store).read().decision == newest.log.decision, "a start does not need it"
