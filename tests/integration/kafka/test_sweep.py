"""What is listed and aborted is one job's one sink; nobody else's is touched, and no reader is held after."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from exactsink.contract import InDoubt
from tests.integration.kafka.participants import TOKEN, Participants, transaction_of


def of_ref(ref: str) -> InDoubt:
    return InDoubt(ref, 1, TOKEN)


def test_open_transactions_are_listed_with_their_times_and_aborted(participants: Participants) -> None:
    before = time.time()
    orphan = participants.vote(0, "orphan", "orphan", timeout=50)
    participants.begin(1, "died before its vote")
    participants.end(participants.vote(2, "committed", "committed"), commit=True)
    participants.begin(4)  # nothing was written: nothing is open

    [first, second] = sorted(participants.session.listed(), key=lambda one: one.ref)
    assert (first.ref, first.generation, first.token, first.epoch) == (orphan.ref, 1, TOKEN, None)
    assert second.ref.startswith(f"{participants.id(1)}/")
    assert first.age_seconds is not None
    assert first.deadline is not None
    assert 0 <= first.age_seconds <= time.time() - before + 1
    assert before + 49 <= first.deadline <= time.time() + 51

    for _ in range(2):
        participants.session.abort(first, second)
        assert not participants.kafka.held(participants.topic)
        assert participants.values() == ["committed", "committed"]
        assert participants.session.listed() == []
    assert participants.commit(orphan) == ["Lost"]


def test_refs_of_other_jobs_and_sinks_are_refused_before_anything_is_done(participants: Participants) -> None:
    """The conformance kit has other jobs' transactions stand there."""
    job, mine = participants.job, participants.vote(7, "ours", "ours")
    for name in (f"{job}.other.g1-ab.s0", f"{job}x.out.g1-ab.s0", f"{job}.out.g1-ab.s00", "abc"):
        with pytest.raises(ValueError, match="is not a participant of sink out of job"):
            participants.session.abort(of_ref(mine.ref), of_ref(f"{name}/1/0"))
    with pytest.raises(ValueError, match="is not a transaction's ref"):
        participants.session.abort(of_ref(mine.ref), of_ref("no ref at all"))
    assert participants.commit(mine) == ["Committed"]


def test_a_listing_that_is_older_than_the_next_use_of_its_id_harms_neither_that_use_nor_a_commit(
    participants: Participants,
) -> None:
    old = participants.vote(0, "old", "old")
    [listed] = participants.session.listed()
    new = participants.vote(0, "new", "new")  # takes the id
    decided = participants.vote(1, "decided", "decided")
    assert participants.end(decided, commit=True) == [0]

    gone = of_ref(replace(transaction_of(new), id=participants.id(99)).ref)
    participants.session.abort(listed, of_ref(decided.ref), gone)
    assert participants.commit(old, new, decided) == ["Lost", "Committed", "AlreadyCommitted"]
    assert participants.values() == ["decided", "decided", "new", "new"]
