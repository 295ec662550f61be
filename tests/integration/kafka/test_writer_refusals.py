"""What keeps a task attempt from a vote: rows that did not arrive, and a transaction that is no longer its own."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from exactsink.contract import Fatal, Retryable
from exactsink_kafka.validator import RecordValidator
from exactsink_kafka.writer import KafkaWriter
from tests.integration.kafka.attempts import HEADERS, Attempts, attempts_on, rows, topic_of
from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("count", "size", "said", "why"),
    [
        (1, 5_000, "a record is", "(MSG_SIZE_TOO_LARGE): a row of 5001 bytes;"),
        (2, 5_000, "a batch of records is", ": a row of 5001 bytes, the largest of 2;"),
        (900, 90, "a batch of records is", ": a row of 91 bytes, the largest of 900;"),
        (1, 1_500_000, "a record is", ": a row of 1500001 bytes;"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_record_that_is_too_large_fails_the_task_for_good(
    kafka: Kafka, attempts: Attempts, named: bool, count: int, size: int, said: str, why: str
) -> None:
    """Its topic's own limit is known to no producer: it was set after `check`, or the rows name their topics."""
    topic = kafka.new_topic("small", 1, max_message_bytes="1000")
    mine = attempts.with_(topic=None, writer="auto") if named else attempts.with_(topic=topic)
    data = rows((b"k", os.urandom(size)), *[(b"k", os.urandom(90))] * (count - 1))
    with pytest.raises(Fatal, match=f"{said} too large for topic {topic}") as failure:
        mine.voted(data.append_column("topic", pa.array([topic] * count)) if named else data)
    assert why in failure.value.why
    by_client = 'max.message.bytes=N, and producer = {"message.max.bytes" = N} of the sink, which takes 1000000 bytes'
    assert (by_client if size > 1_000_000 else "max.message.bytes=1000064; or, ") in failure.value.next


def test_a_timestamp_that_brokers_refuse_names_the_executors_clock(kafka: Kafka, attempts: Attempts) -> None:
    topic = kafka.new_topic("ahead", 1, message_timestamp_after_max_ms="3600000")  # the default since Kafka 4.0
    ahead = pa.array([datetime.now(timezone.utc) + timedelta(hours=2)], pa.timestamp("us", "UTC"))
    with pytest.raises(Fatal, match="refuses a record's timestamp") as failure:
        attempts.with_(topic=topic, writer="auto").voted(rows((b"k", b"v"), timestamp=ahead))
    assert f"clock right, now {datetime.now(timezone.utc):%Y-%m-%d}" in failure.value.next


def test_a_row_larger_than_the_queue_is_refused_at_once_with_its_size_and_the_setting(attempts: Attempts) -> None:
    mine = attempts.with_(producer={"queue.buffering.max.kbytes": 100, "linger.ms": 0})
    with pytest.raises(Fatal, match="too large for topic") as failure:
        mine.voted(rows((b"k", b"fits"), (b"k", b"v" * 102_401)))
    assert ": a row of 102402 bytes;" in failure.value.why
    assert (
        'producer = {"queue.buffering.max.kbytes" = N} of the sink, which takes 102400 bytes now' in failure.value.next
    )
    for headers, size in (None, 0), ([{"key": "h", "value": b"x"}], 4):  # two lengths of a byte
        most, beside = 102_400 - 36 - 1 - size, {"headers": pa.array([headers] * 2, HEADERS)} if headers else {}
        assert mine.voted(rows(*[(b"k", b"v" * most)] * 2, **beside), attempt=size).rows == 2
        odd = rows((b"k", b"v" * most), (b"k", b"v" * (most + 1)), **beside)
        [(place, why)] = RecordValidator(mine.options, odd.schema).bad_rows(odd)
        assert (place, why) == (1, "no record: it has 102365 bytes, and queue.buffering.max.kbytes leaves 102364")


def test_a_topic_s_own_limit_is_kept_where_the_producer_has_the_same(kafka: Kafka, attempts: Attempts) -> None:
    """As `check` says: batches of small rows then fit as well, and no row waits for the brokers' refusal."""
    limit = {"message.max.bytes": 4936}
    mine = attempts.with_(topic=kafka.new_topic("small", 1, max_message_bytes="5000"), producer=limit)
    assert mine.voted(rows(*[(b"k", os.urandom(4899))] * 3, *[(b"k", os.urandom(90))] * 900)).rows == 903


def test_a_topic_that_is_not_there_fails_the_task(attempts: Attempts) -> None:
    mine = attempts.with_(topic="no-such-topic", producer={"topic.metadata.propagation.max.ms": 100})
    with pytest.raises(Fatal, match="there is no topic no-such-topic"):
        mine.voted(rows((b"k", b"v")))


@pytest.mark.parametrize(("partition", "message"), [(99, "a partition that .* does not have"), (-1, "negative")])
def test_a_partition_that_is_not_there_fails_the_task(attempts: Attempts, partition: int, message: str) -> None:
    with pytest.raises(Fatal, match=message):
        attempts.voted(rows((b"k", b"v"), (b"k", b"w"), partition=pa.array([None, partition], pa.int32())))


def test_another_cluster_than_the_driver_s_gets_no_row(attempts: Attempts) -> None:
    elsewhere = Attempts(attempts.bootstrap, "another-cluster", attempts.job, attempts.given)
    with pytest.raises(Fatal, match="another cluster"):
        elsewhere.writer(rows((b"k", b"v")).schema)


def other_use(attempts: Attempts, value: bytes | None = None) -> Producer:
    """Take the id as a later attempt would, and write in its transaction."""
    other = Producer({"bootstrap.servers": attempts.bootstrap, "transactional.id": attempts.id(), "log_level": 0})
    other.init_transactions(30)
    if value is not None:
        other.begin_transaction()
        for partition in range(3):
            other.produce(topic_of(attempts), value, partition=partition)
        assert other.flush(30) == 0
    return other


@pytest.mark.parametrize(("flushed", "writes"), [(True, b"theirs"), (False, None)])
def test_a_later_attempt_on_the_id_leaves_this_one_without_a_vote(
    attempts: Attempts, writes: bytes | None, flushed: bool
) -> None:
    writer = attempts.writer(rows((b"k", b"v")).schema)
    writer.write(rows(*[(b"k%d" % n, b"v") for n in range(20)]))
    if flushed:  # nothing is left to be refused: only the coordinator knows
        writer._producer.flush(30)
    other = other_use(attempts, writes)
    with pytest.raises(Retryable, match="no longer this attempt's"):
        writer.pre_commit()
    assert attempts.described().state == ("Empty" if writes is None else "Ongoing")  # theirs is left alone
    del other


def test_an_answer_about_a_later_attempt_is_never_taken_for_ones_own(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other comes between this one's taking of the id and its first question whose it is."""
    asked: list[Producer] = []
    described = KafkaWriter._described

    def late(self: KafkaWriter) -> Any:
        if not asked:
            asked.append(other_use(attempts, b"theirs"))
        return described(self)

    monkeypatch.setattr(KafkaWriter, "_described", late)
    with pytest.raises(Retryable, match="no longer this attempt's"):
        attempts.voted(rows(*[(b"k%d" % n, b"v") for n in range(20)]))
    assert attempts.described().state == "Ongoing"


def test_a_transaction_that_the_broker_gave_up_has_no_vote(kafka: Kafka, attempts: Attempts) -> None:
    mine = attempts.with_(transaction_timeout_seconds=1)
    writer = mine.writer(rows((b"k", b"v")).schema)
    writer.write(rows((b"k", b"v")))
    writer._producer.flush(30)
    writer._until += 60  # as a clock would that runs late
    wait_until(lambda: mine.described().state == "CompleteAbort", "the broker to give the transaction up")
    with pytest.raises(Retryable, match="no longer this attempt's"):
        writer.pre_commit()


@pytest.mark.parametrize("more", [1, -1])
def test_rows_that_the_brokers_do_not_number_have_no_vote(attempts: Attempts, more: int) -> None:
    writer = attempts.writer(rows((b"k", b"v")).schema)
    writer.write(rows(*[(b"k%d" % n, b"v") for n in range(20)]))
    writer._rows += more  # as if the client had lost one, or sent one twice, and said nothing
    with pytest.raises(Retryable, match=f"the brokers have 20 rows of {20 + more}"):
        writer.pre_commit()


def test_a_topic_made_again_has_no_vote(kafka: Kafka, attempts: Attempts) -> None:
    writer = attempts.writer(rows((b"k", b"v")).schema)
    writer.write(rows(*[(b"k%d" % n, b"v") for n in range(20)]))
    writer._producer.flush(30)
    kafka.delete_topic(topic_of(attempts))
    again = kafka.admin()
    again.create_topics([NewTopic(topic_of(attempts), 3)])[topic_of(attempts)].result(30)
    with pytest.raises(Retryable, match=r"no longer this attempt's|UNKNOWN_TOPIC_OR_PARTITION"):  # not known to all yet
        writer.pre_commit()


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("topic", pa.array([None], pa.string()), "topic is NULL"),
        ("timestamp", pa.array([0], pa.timestamp("us", "UTC")), "not after 1970"),
        ("timestamp", pa.array([-5_000_000], pa.timestamp("us", "UTC")), "not after 1970"),
        ("headers", pa.array([[{"key": None, "value": b""}]], HEADERS), "without a key"),
    ],
)
def test_rows_of_which_no_record_can_be_made_fail_the_task(
    kafka: Kafka, column: str, values: pa.Array, message: str
) -> None:
    columns = {"value": pa.array(["v"]), column: values}
    topic = None if column == "topic" else kafka.new_topic("odd")
    with pytest.raises(Fatal, match=message):
        attempts_on(kafka.bootstrap).with_(topic=topic).voted(pa.record_batch(columns))
