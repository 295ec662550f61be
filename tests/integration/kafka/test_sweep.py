"""What is listed and aborted is one job's one sink; nobody else's is touched, and no reader is held after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from exactsink.contract import InDoubt
from tests.integration.kafka.participants import TOKEN, Participants, proven, transaction_of
from tests.servers.kafka_view import Kafka

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture
def participants(kafka: Kafka) -> Iterator[Participants]:
    with Participants.of(kafka) as made:
        yield made


def abort(participants: Participants, *found: InDoubt) -> None:
    committer = participants.committer()
    try:
        committer.abort(proven(*found))
    finally:
        committer.close()


def of_ref(ref: str) -> InDoubt:
    return InDoubt(ref, 1, TOKEN)


def test_open_transactions_are_listed_and_aborted_and_readers_go_on(participants: Participants) -> None:
    before = time.time()
    orphan = participants.vote(0, "orphan", "orphan", timeout=50)
    participants.begin(1, "died before its vote")
    committed, aborted = participants.vote(2, "committed", "committed"), participants.vote(3, "aborted", "aborted")
    participants.end(committed, commit=True)
    participants.end(aborted, commit=False)
    participants.begin(4)  # nothing was written: nothing is open

    [first, second] = participants.listed()
    assert (first.ref, first.generation, first.token, first.epoch) == (orphan.ref, 1, TOKEN, None)
    assert second.ref.startswith(f"{participants.id(1)}/")
    assert first.age_seconds is not None
    assert first.deadline is not None
    assert 0 <= first.age_seconds <= time.time() - before + 1
    assert before + 49 <= first.deadline <= time.time() + 51

    assert participants.kafka.held(participants.topic)
    abort(participants, first, second)
    assert not participants.kafka.held(participants.topic)
    assert participants.values() == ["committed", "committed"]
    assert participants.listed() == []
    abort(participants, first, second)  # again: it is done
    abort(participants)
    assert participants.commit(orphan) == ["Lost"]


def test_transactions_of_other_jobs_and_sinks_and_of_strangers_are_neither_listed_nor_touched(
    participants: Participants,
) -> None:
    job, sink = participants.job, participants.sink
    others = {
        "other sink": f"{job}.out2.g1-{TOKEN}.s0",
        "other job": f"{job}2.{sink}.g1-{TOKEN}.s0",
        "ours is its tail": f"x.{job}.{sink}.g1-{TOKEN}.s0",
        "begins like ours": f"{job}.{sink}.g1-{TOKEN}.s0.and-more",
        "a leading zero": f"{job}.{sink}.g1-{TOKEN}.s00",
        "no slot": f"{job}.{sink}.g1-{TOKEN}",
        "begins with our prefix": f"{job}.{sink}.generic",
        "the dots are any letter": f"{job}x{sink}xg1-{TOKEN}.s0",
    }
    for about, name in others.items():
        participants.begin(name, about)
    participants.begin(7, "ours")

    assert [one.ref.rsplit("/", 2)[0] for one in participants.listed()] == [participants.id(7)]
    abort(participants, *participants.listed())
    reported = participants.wire.describe(others.values())
    assert {name: reported[name].state for name in others.values()} == dict.fromkeys(others.values(), "Ongoing")
    participants.wire.end([one.transaction for one in reported.values()], commit=False)


@pytest.mark.parametrize("name", ["{job}.other.g1-ab.s0", "{job}x.out.g1-ab.s0", "{job}.out.g1-ab.s00", "abc"])
def test_a_ref_of_somebody_else_is_refused_before_anything_is_done(participants: Participants, name: str) -> None:
    mine = participants.vote(0, "mine", "mine")
    foreign = of_ref(f"{name.format(job=participants.job)}/1/0")
    with pytest.raises(ValueError, match="is no participant of sink out of job"):
        abort(participants, of_ref(mine.ref), foreign)
    with pytest.raises(ValueError, match="is no transaction's ref"):
        abort(participants, of_ref(mine.ref), of_ref("no ref at all"))
    assert participants.commit(mine) == ["Committed"]


def test_a_listing_that_is_older_than_the_next_use_of_its_id_harms_neither_that_use_nor_a_commit(
    participants: Participants,
) -> None:
    old = participants.vote(0, "old", "old")
    [listed] = participants.listed()
    new = participants.vote(0, "new", "new")  # takes the id
    decided = participants.vote(1, "decided", "decided")
    assert participants.end(decided, commit=True) == [0]

    abort(participants, listed, of_ref(decided.ref), of_ref(replace(transaction_of(new), id=participants.id(99)).ref))
    assert participants.commit(old, new, decided) == ["Lost", "Committed", "AlreadyCommitted"]
    assert participants.values() == ["decided", "decided", "new", "new"]


def test_many_orphans_in_many_partitions_hold_no_reader_after_the_sweep(kafka: Kafka) -> None:
    with Participants.of(kafka, partitions=30) as participants:
        for slot in range(3):
            producer = participants.begin(slot)
            for number in range(30):
                producer.produce(participants.topic, b"row", partition=number)
            assert producer.flush(60) == 0
        committer = participants.committer()
        found = list(committer.in_doubt())
        committer.abort(proven(*found))
        states = {one.state for one in participants.wire.describe(map(participants.id, range(3))).values()}
        committer.close()
        assert states == {"CompleteAbort"}
        assert len(found) == 3
        assert not participants.kafka.held(participants.topic)
