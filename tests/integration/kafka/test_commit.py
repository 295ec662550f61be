"""A decided epoch is committed: visible when the call returns, whoever repeats it, and never by another cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import NewTopic
from kafka import TopicPartition
from kafka.admin import AbortTransactionSpec

from exactsink.contract import Committed, Lost, Unknown
from tests.integration.kafka.participants import Participants, kinds, transaction_of, voted
from tests.servers.kafka_view import Kafka
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture
def participants(kafka: Kafka) -> Iterator[Participants]:
    with Participants.of(kafka) as made:
        yield made


def test_an_epoch_of_many_participants_is_visible_when_commit_returns_and_a_repeat_says_so(
    participants: Participants,
) -> None:
    votes = participants.votes(16)
    assert participants.kafka.held(participants.topic)
    assert participants.values() == []

    assert participants.outcomes(*votes) == [Committed()] * 16
    states = participants.wire.describe(transaction_of(vote).id for vote in votes)
    assert {reported.state for reported in states.values()} == {"CompleteCommit"}
    assert not participants.kafka.held(participants.topic)
    assert participants.commit(*votes) == ["AlreadyCommitted"] * 16
    assert participants.values() == sorted(f"{slot}-{row}" for slot in range(16) for row in "ab")


def test_rows_in_many_partitions_are_visible_when_commit_returns(kafka: Kafka) -> None:
    """The more partitions get a marker, the later they are all there: the answer to EndTxn comes before."""
    with Participants.of(kafka, partitions=40) as participants:
        producer = participants.begin(0)
        for number in range(40):
            producer.produce(participants.topic, b"row", partition=number)
        assert producer.flush(60) == 0
        vote = participants.committable(0, 40)
        committer = participants.committer()
        assert committer.commit(0, [vote]) == [Committed()]
        assert participants.wire.describe([participants.id(0)])[participants.id(0)].state == "CompleteCommit"
        committer.close()
        assert participants.values() == ["row"] * 40


def test_two_drivers_commit_at_the_same_moment(participants: Participants) -> None:
    votes = participants.votes(8)
    together = threading.Barrier(2)
    committers = [participants.committer(), participants.committer()]

    def commit(number: int) -> list[str]:
        committers[number].in_doubt()  # connected
        together.wait(60)
        return kinds(committers[number].commit(0, votes))

    with ThreadPoolExecutor(2) as pool:
        reported = list(pool.map(commit, range(2)))
    for committer in committers:
        committer.close()
    assert set(reported[0] + reported[1]) <= {"Committed", "AlreadyCommitted"}
    assert all("Committed" in pair for pair in zip(*reported, strict=True))
    assert participants.values() == sorted(f"{slot}-{row}" for slot in range(8) for row in "ab")


def test_a_vote_of_another_cluster_is_unknown_and_nothing_is_ended(participants: Participants) -> None:
    vote, other = participants.votes(2)
    elsewhere = voted(vote, cluster="another-cluster")

    [reported, committed] = participants.outcomes(elsewhere, other)
    assert isinstance(reported, Unknown)
    assert "another-cluster" in reported.evidence
    assert participants.wire.cluster().id in reported.evidence
    assert committed == Committed()
    assert participants.wire.describe([participants.id(0)])[participants.id(0)].state == "Ongoing"
    assert participants.commit(vote) == ["Committed"]


def test_what_became_of_a_participant_before_is_reported_whatever_it_was(participants: Participants) -> None:
    """Each slot has a history of its own; all are asked for in one call."""
    with ThreadPoolExecutor(8) as pool:
        producers = dict(
            zip(
                range(11),
                pool.map(lambda slot: participants.begin(slot, f"{slot}-a", f"{slot}-b"), range(11)),
                strict=True,
            )
        )
    votes = {slot: participants.committable(slot, 2) for slot in producers}
    expected = {}

    def ended(slot: int, *, commit: bool) -> None:
        assert participants.end(votes[slot], commit=commit) == [0]
        states = ("PrepareCommit", "PrepareAbort")
        while participants.wire.describe([participants.id(slot)])[participants.id(slot)].state in states:
            pass

    expected[0] = "Committed"  # open
    ended(1, commit=False)
    expected[1] = "Lost"
    producers[2].abort_transaction()  # by librdkafka: another version
    expected[2] = "Lost"
    producers[3].commit_transaction()
    expected[3] = "AlreadyCommitted"
    ended(4, commit=True)
    participants.begin(4)  # taken again
    expected[4] = "AlreadyCommitted"
    ended(5, commit=False)
    participants.begin(5)
    expected[5] = "Lost"
    participants.begin(6)  # taken again while it was open: the broker aborts
    expected[6] = "Lost"
    ended(7, commit=True)
    participants.begin(7, "7-later", "7-later")  # and written with, and aborted
    later = participants.committable(7, 2)
    assert participants.end(later, commit=False) == [0]
    expected[7] = "AlreadyCommitted"
    ended(8, commit=False)
    participants.begin(8, "8-later", "8-later")
    assert participants.end(participants.committable(8, 2), commit=True) == [0]
    expected[8] = "Lost"
    producers[9].abort_transaction()  # versions mixed on one id: a stale commit looks like a success
    participants.begin(9, "9-later", "9-later").commit_transaction()
    expected[9] = "Lost"
    producers[10].commit_transaction()  # and a stale commit like a loss
    participants.begin(10, "10-later", "10-later").abort_transaction()
    expected[10] = "AlreadyCommitted"

    reported = participants.outcomes(*votes.values())
    assert dict(zip(votes, kinds(reported), strict=True)) == expected
    for slot, outcome in zip(votes, reported, strict=True):
        if isinstance(outcome, Lost):
            assert transaction_of(votes[slot]).ref in outcome.evidence
    shown = {0, 3, 4, 7, 10}
    assert participants.values() == sorted(
        [f"{slot}-{row}" for slot in shown for row in "ab"] + ["8-later"] * 2 + ["9-later"] * 2
    )


def test_rows_after_an_aborted_transaction_of_the_same_producer_are_not_taken_for_its(
    participants: Participants,
) -> None:
    first = participants.vote(0, "first", "first")
    assert participants.end(first, commit=False) == [0]
    second = participants.vote(0, "second", "second")
    assert transaction_of(first).producer_id == transaction_of(second).producer_id
    assert participants.end(second, commit=True) == [0]
    third = participants.vote(0, "third", "third")
    assert participants.end(third, commit=False) == [0]

    assert participants.commit(first, second, third) == ["Lost", "AlreadyCommitted", "Lost"]
    assert participants.values() == ["second", "second"]


def test_an_epoch_is_opened_with_another_round_of_ids_each_time(participants: Participants) -> None:
    from exactsink_kafka.ids import Ticket

    committer = participants.committer()
    tickets = [Ticket.load(committer.open_epoch(epoch, None, 3)) for epoch in range(4)]  # type: ignore[arg-type]
    committer.close()
    assert [ticket.first_slot for ticket in tickets] == [0, 12, 24, 0]
    assert {(ticket.slots, ticket.cluster) for ticket in tickets} == {(12, participants.wire.cluster().id)}


def test_a_transaction_that_an_administrator_aborts_in_one_partition_is_not_committed_with_half_its_rows(
    participants: Participants,
) -> None:
    """`kafka-transactions.sh abort` goes past the coordinator, which would answer a commit with success."""
    spoilt, whole = participants.votes(2)
    one = transaction_of(spoilt)
    place = TopicPartition(participants.topic, 0)
    participants.wire.admin.abort_transaction(AbortTransactionSpec(place, one.producer_id, one.producer_epoch))

    reported = participants.outcomes(spoilt, whole)
    assert isinstance(reported[0], Unknown)
    assert f"{participants.topic}-0" in reported[0].evidence
    assert reported[1] == Committed()
    assert participants.wire.describe([one.id])[one.id].state == "Ongoing"

    assert participants.end(spoilt, commit=False) == [0]  # as its timeout would
    assert participants.commit(spoilt) == ["Lost"]
    assert participants.values() == ["1-a", "1-b"]


def test_a_topic_that_is_made_again_under_open_transactions_is_no_place_to_commit(participants: Participants) -> None:
    [vote] = participants.votes(1)
    admin = participants.kafka.admin()
    participants.kafka.delete_topic(participants.topic)
    admin.create_topics([NewTopic(participants.topic, 2, 1)])[participants.topic].result(30)
    wait_until(lambda: participants.topic in participants.wire.topics([participants.topic]), "the topic to be there")
    [reported] = participants.outcomes(vote)
    assert isinstance(reported, Unknown)
    assert "was made again" in reported.evidence


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_written_into_a_partition_that_lacks_it(participants: Participants, commit: bool) -> None:
    """What a coordinator owes after a crash: here it is written before the coordinator ends the rest."""
    [vote] = participants.votes(1)
    one = transaction_of(vote)
    place = (participants.topic, 0)
    [mine] = participants.wire.open_in([place])[place]
    assert participants.wire.mark(one, place, mine.coordinator_epoch, commit=commit) == 0
    assert participants.wire.open_in([place])[place] == ()
    assert participants.values() == (["0-a"] if commit else [])
    assert participants.wire.mark(one, place, mine.coordinator_epoch, commit=commit) == 0, "once more"
    participants.end(vote, commit=commit)
    assert participants.values() == (["0-a", "0-b"] if commit else [])
