"""The brokers of these tests themselves: they show what is committed, and come back, end and refuse as they should."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.servers.kafka import Kafka
from tests.servers.kafka_view import KafkaAdminClient

pytest_plugins = ["tests.servers.fixtures"]


def open_transaction(kafka: Kafka, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def test_rows_are_what_is_committed_whole_and_in_order(kafka: Kafka) -> None:
    topic = kafka.new_topic("rows", partitions=2)
    headers = [("h", b"1"), ("h", None), ("", b"")]
    producer = open_transaction(kafka, topic)
    producer.produce(topic, b"", None, partition=1, timestamp=1_000)
    producer.produce(topic, b"v", b"k", partition=0, timestamp=2_000, headers=headers)
    producer.produce(topic, None, b"", partition=1, timestamp=3_000)
    assert producer.flush(30) == 0
    assert kafka.rows(topic) == []
    assert kafka.held(topic)

    producer.commit_transaction(30)
    seen = [(row.partition, row.offset, row.key, row.value, row.headers, row.timestamp) for row in kafka.rows(topic)]
    assert seen == [
        (0, 0, b"k", b"v", (("h", b"1"), ("h", None), ("", b"")), 2_000),
        (1, 0, None, b"", (), 1_000),
        (1, 1, b"", None, (), 3_000),
    ]
    assert not kafka.held(topic)


def test_rows_pass_over_what_was_aborted_and_end_before_what_is_open(kafka: Kafka) -> None:
    topic = kafka.new_topic("rows", partitions=1)
    aborted = open_transaction(kafka, f"{topic}-aborted")
    aborted.produce(topic, b"aborted")
    assert aborted.flush(30) == 0
    aborted.abort_transaction(30)
    assert kafka.rows(topic) == []
    assert not kafka.held(topic)

    plain = Producer({"bootstrap.servers": kafka.bootstrap})
    plain.produce(topic, b"before")
    assert plain.flush(30) == 0
    still_open = open_transaction(kafka, f"{topic}-open")
    still_open.produce(topic, b"open")
    assert still_open.flush(30) == 0
    plain.produce(topic, b"behind")
    assert plain.flush(30) == 0
    assert [row.value for row in kafka.rows(topic)] == [b"before"]
    assert kafka.held(topic)

    still_open.abort_transaction(30)
    assert [row.value for row in kafka.rows(topic)] == [b"before", b"behind"]


def test_settled_means_that_the_broker_has_marked_what_it_answered_before(kafka: Kafka) -> None:
    topic = kafka.new_topic("settled", partitions=20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    states: list[str] = []
    for _ in range(8):
        producer.begin_transaction()
        for partition in range(20):
            producer.produce(topic, b"v", partition=partition)
        producer.commit_transaction(30)
        kafka.settle()
        states.append(client.describe_transactions([topic])[topic].state)
    client.close()
    assert states == ["CompleteCommit"] * 8
