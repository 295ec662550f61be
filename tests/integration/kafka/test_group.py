"""The source's offsets in a consumer group, on a real broker: what lag tools see there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from kafka import KafkaAdminClient
from kafka.errors import RetriableError

from exactsink.contract import Retryable
from exactsink_kafka.group import report_offsets
from exactsink_kafka.options import KafkaOptions, kafka_python_settings
from tests.servers.kafka import Kafka
from tests.servers.kafka_jars import VERSION
from tests.servers.waiting import wait_until


@pytest.fixture
def admin(kafka: Kafka) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(**kafka_python_settings(KafkaOptions(bootstrap_servers=kafka.bootstrap), "tests"))
    wait_until(lambda: _has_coordinators(client), "the broker, asked for a group for the first time, to make its topic")
    yield client
    client.close()


def _has_coordinators(client: KafkaAdminClient) -> bool:
    try:
        client.describe_groups(["nobody"])
    except RetriableError:
        return False
    return True


@pytest.fixture
def group() -> str:
    return f"lag-{uuid.uuid4().hex}"


def offsets(kafka: Kafka, group: str) -> dict[tuple[str, int], int]:
    """Read the group's committed offsets as another client's tools do."""
    client = kafka.admin()  # kept until the answer is there
    answer = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {(p.topic, p.partition): p.offset for p in answer.topic_partitions}


def member(kafka: Kafka, group: str, topic: str, protocol: str) -> Consumer:
    """Join the group, and wait until partitions are assigned."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.05) is not None or bool(consumer.assignment()), f"{group} to have a member")
    return consumer


def test_offsets_of_all_sources_stand_in_the_group_and_move_with_the_job(
    kafka: Kafka, admin: KafkaAdminClient, group: str
) -> None:
    orders, clicks = kafka.new_topic("orders"), kafka.new_topic("clicks", 1)
    ends = [json.dumps({orders: {"0": 3, "1": 8}}), '{"logOffset": 7}', "not json", json.dumps({clicks: {"0": 5}})]
    for _ in range(2):
        report_offsets(admin, group, ends)
        assert offsets(kafka, group) == {(orders, 0): 3, (orders, 1): 8, (clicks, 0): 5}
    report_offsets(admin, group, [json.dumps({orders: {"0": 2, "1": 8}}), json.dumps({clicks: {"0": 9}})])
    assert offsets(kafka, group) == {(orders, 0): 2, (orders, 1): 8, (clicks, 0): 9}, "back as well"


@pytest.mark.parametrize("protocol", ["classic", *["consumer"] * (VERSION >= "4")])  # since Kafka 4.0
def test_a_group_with_members_keeps_its_offsets_and_the_error_says_why(
    protocol: str, kafka: Kafka, admin: KafkaAdminClient, group: str
) -> None:
    topic = kafka.new_topic("orders", 1)
    consumer = member(kafka, group, topic, protocol)
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        with pytest.raises(Retryable, match="the group has consumers") as refused:
            report_offsets(admin, group, [json.dumps({topic: {"0": 5}})])
        assert f"group {group}" in refused.value.what
        assert "--members" in refused.value.next
        assert offsets(kafka, group) == {(topic, 0): 2}
    finally:
        consumer.close()
    report_offsets(admin, group, [json.dumps({topic: {"0": 5}})])
    assert offsets(kafka, group) == {(topic, 0): 5}


def test_a_source_of_another_cluster_is_named_and_the_others_offsets_stand(
    kafka: Kafka, admin: KafkaAdminClient, group: str
) -> None:
    topic, elsewhere = kafka.new_topic("orders", 1), f"elsewhere-{uuid.uuid4().hex}"
    with pytest.raises(Retryable, match="no such topic or partition") as refused:
        report_offsets(admin, group, [json.dumps({topic: {"0": 5}, elsewhere: {"0": 6}})])
    assert f"{elsewhere}/0" in refused.value.what
    assert f"{topic}/0" not in refused.value.what
    assert offsets(kafka, group) == {(topic, 0): 5}
