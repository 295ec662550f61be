"""What became of a transaction whose id is used again is read where its rows began; what is gone proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from exactsink.contract import Committable, InDoubt, Retryable, Unknown
from exactsink_kafka.outcomes import resolve
from exactsink_kafka.transactions import Voted
from tests.integration.kafka.participants import TOKEN, Participants, transaction_of


def moved_on(participants: Participants, slot: int = 0, *, commit: bool = True) -> Committable:
    """Return the vote of a transaction that was ended, and whose id another attempt has taken since."""
    vote = participants.vote(slot, "a", "b")
    assert participants.end(vote, commit=commit) == [0]
    participants.begin(slot)
    return vote


def unknown(participants: Participants, vote: Committable) -> str:
    [outcome] = participants.outcomes(vote)
    assert isinstance(outcome, Unknown), outcome
    assert transaction_of(vote).ref in outcome.evidence
    return outcome.evidence


def test_what_an_open_transaction_holds_up_is_named_by_partition_and_offset(participants: Participants) -> None:
    first = participants.vote(0, "a", "b")
    second = participants.vote(1, "c")
    [written] = Voted.load(second).written

    said = blocked(participants, first)
    assert len(said) == 2
    for number, sentence in enumerate(said):
        assert f"readers of {participants.topic}-{number} with isolation.level=read_committed" in sentence
        assert "get no row from offset 0 on, until it ends: the brokers abort it at" in sentence
    [behind] = blocked(participants, second)
    assert f"then at offset {written.first_offsets[0]}" in behind
    assert participants.commit(first) == ["Committed"]
    assert blocked(participants, first) == []
    assert "get no row from" in blocked(participants, second)[0]


def blocked(participants: Participants, vote: Committable) -> Sequence[str]:
    with closing(participants.committer()) as committer:
        return committer.blocks(InDoubt(vote.ref, 1, TOKEN))


@pytest.mark.parametrize("commit", [True, False])
def test_rows_of_a_topic_that_was_made_again_prove_nothing_though_offsets_and_names_agree(
    participants: Participants, commit: bool
) -> None:
    vote = moved_on(participants, commit=not commit)
    old = participants.wire.topics([participants.topic])[participants.topic].id
    new = participants.again()
    again = participants.vote(0, "c", "d")  # the same producer, at the same offsets
    participants.end(again, commit=commit)

    evidence = unknown(participants, vote)
    assert old in evidence
    assert f"was made again, with id {new}" in evidence
    assert participants.commit(again) == ["AlreadyCommitted" if commit else "Lost"]


def test_deleted_records_prove_nothing_and_one_partition_that_is_left_proves_all(participants: Participants) -> None:
    participants.begin(9, "x", "x").commit_transaction()
    committed = moved_on(participants, 0, commit=True)
    aborted = moved_on(participants, 1, commit=False)
    participants.begin(8, "y", "y").commit_transaction()
    [written] = Voted.load(aborted).written
    ends = [written.first_offsets[partition] + 2 for partition in (0, 1)]

    participants.delete_records(0, ends[0])
    assert participants.commit(committed, aborted) == ["AlreadyCommitted", "Lost"]
    participants.delete_records(1, ends[1])
    for vote in (committed, aborted):
        evidence = unknown(participants, vote)
        for end in ends:
            assert f"the partition begins at offset {end} now" in evidence


def test_a_foreign_open_transaction_that_hides_the_end_is_waited_for_and_named(participants: Participants) -> None:
    foreign = participants.begin("foreign", "x", "x")
    ended = participants.votes(2, first=2)
    assert [participants.end(vote, commit=vote is ended[0]) for vote in ended] == [[0], [0]]
    known = ended if participants.wire.cluster().raises else ended[:1]  # what fences an aborted one hides its end
    outcomes = ["AlreadyCommitted", "Lost"][: len(known)]
    assert participants.commit(*known) == outcomes, "its coordinator still knows, and is believed"
    committed = moved_on(participants, 0, commit=True)
    aborted = moved_on(participants, 1, commit=False)
    producer = participants.wire.describe(["foreign"])["foreign"].transaction

    for vote in (committed, aborted):
        with pytest.raises(Retryable, match=f"producer id {producer.producer_id} .* holds the last stable offset"):
            resolve(participants.wire, Voted.load(vote), "PRODUCER_FENCED", wait_seconds=0.1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(participants.commit, committed, aborted)
        foreign.abort_transaction()
        assert waiting.result(60) == ["AlreadyCommitted", "Lost"]
