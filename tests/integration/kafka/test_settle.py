"""What became of a transaction whose id is used again is read where its rows began; what is gone proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from exactsink.contract import Committable, Retryable, Unknown
from exactsink_kafka.settle import settle
from exactsink_kafka.vote import Vote
from tests.integration.kafka.participants import Participants, transaction_of
from tests.servers.kafka_view import Kafka
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture
def participants(kafka: Kafka) -> Iterator[Participants]:
    with Participants.of(kafka) as made:
        yield made


def moved_on(participants: Participants, slot: int = 0, *, commit: bool = True) -> Committable:
    """Return the vote of a transaction that was ended, and whose id another attempt has taken since."""
    vote = participants.vote(slot, "a", "b")
    assert participants.end(vote, commit=commit) == [0]
    participants.begin(slot)
    return vote


def unknown(participants: Participants, vote: Committable) -> str:
    [reported] = participants.outcomes(vote)
    assert isinstance(reported, Unknown), reported
    assert transaction_of(vote).ref in reported.evidence
    return reported.evidence


def delete_records(participants: Participants, *before: tuple[int, int]) -> None:
    wanted = [TopicPartition(participants.topic, partition, offset) for partition, offset in before]
    admin = participants.kafka.admin()
    for answer in admin.delete_records(wanted).values():
        answer.result(60)


def test_rows_of_a_deleted_topic_prove_nothing(participants: Participants) -> None:
    vote = moved_on(participants)
    assert participants.commit(vote) == ["AlreadyCommitted"]
    participants.kafka.delete_topic(participants.topic)
    assert f"topic {participants.topic}" in (reported := unknown(participants, vote))
    assert "was deleted" in reported


@pytest.mark.parametrize("commit", [True, False])
def test_rows_of_a_topic_that_was_made_again_prove_nothing_though_offsets_and_names_agree(
    participants: Participants, commit: bool
) -> None:
    vote = moved_on(participants, commit=not commit)
    old = participants.wire.topics([participants.topic])[participants.topic].id
    participants.kafka.delete_topic(participants.topic)
    admin = participants.kafka.admin()
    admin.create_topics([NewTopic(participants.topic, 2, 1)])[participants.topic].result(60)
    wait_until(lambda: participants.topic in participants.wire.topics([participants.topic]), "the new topic")
    again = participants.vote(0, "c", "d")  # the same producer, at the same offsets
    participants.end(again, commit=commit)

    new = participants.wire.topics([participants.topic])[participants.topic].id
    reported = unknown(participants, vote)
    assert old in reported
    assert f"was made again, with id {new}" in reported
    assert participants.commit(again) == ["AlreadyCommitted" if commit else "Lost"]


def test_deleted_records_prove_nothing_and_one_partition_that_is_left_reports_all(participants: Participants) -> None:
    participants.begin(9, "x", "x").commit_transaction()
    committed = moved_on(participants, 0, commit=True)
    aborted = moved_on(participants, 1, commit=False)
    participants.begin(8, "y", "y").commit_transaction()
    [written] = Vote.load(aborted).written
    [end0, end1] = [written.first_offsets[partition] + 2 for partition in (0, 1)]

    delete_records(participants, (0, end0))
    assert participants.commit(committed, aborted) == ["AlreadyCommitted", "Lost"]
    delete_records(participants, (1, end1))
    for vote in (committed, aborted):
        reported = unknown(participants, vote)
        assert f"the partition begins at offset {end0} now" in reported
        assert f"the partition begins at offset {end1} now" in reported


def test_a_strangers_open_transaction_that_hides_the_end_is_waited_for_and_named(participants: Participants) -> None:
    stranger = participants.begin("a-stranger", "x", "x")
    committed = moved_on(participants, 0, commit=True)
    aborted = moved_on(participants, 1, commit=False)
    assert participants.kafka.held(participants.topic)
    producer = participants.wire.describe(["a-stranger"])["a-stranger"].transaction

    for vote in (committed, aborted):
        with pytest.raises(Retryable, match=f"producer id {producer.producer_id} .* holds the last stable offset"):
            settle(participants.wire, Vote.load(vote), "PRODUCER_FENCED", wait_seconds=0.1)
    with ThreadPoolExecutor(1) as pool:
        reported = pool.submit(participants.commit, committed, aborted)
        stranger.abort_transaction()
        assert reported.result(60) == ["AlreadyCommitted", "Lost"]


def test_a_stranger_that_hides_one_partition_does_not_matter_where_another_reports(participants: Participants) -> None:
    participants.begin("another-stranger", "x")  # in partition 0
    committed = moved_on(participants, 0, commit=True)
    aborted = moved_on(participants, 1, commit=False)
    reported = settle(participants.wire, Vote.load(committed), "PRODUCER_FENCED", wait_seconds=0)
    assert type(reported).__name__ == "AlreadyCommitted"
    assert participants.commit(aborted, committed) == ["Lost", "AlreadyCommitted"]


def test_rows_are_found_in_the_middle_of_what_a_reader_fetches(participants: Participants) -> None:
    """Batches of many transactions lie behind each other, aborted and committed ones in turn."""
    votes = {}
    for slot in range(6):
        votes[slot] = moved_on(participants, slot, commit=slot % 3 != 0)
    expected = ["Lost" if slot % 3 == 0 else "AlreadyCommitted" for slot in votes]
    assert participants.commit(*votes.values()) == expected
