"""From a Kafka source to Kafka: the group's offsets are the ends of what is committed, and no epoch fails for them."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions

from exactsink.testing import Fault
from tests.e2e.drivers import KILLED, Drivers
from tests.e2e.jobs import PARTICIPANTS, ROWS_A_BATCH, SPARK, write_job, write_source
from tests.e2e.kafka_job import KafkaSink
from tests.e2e.kafka_source import CONF, EPOCHS, SOURCE, TRANSFORM
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until


def test_offsets_are_reported_after_each_commit_and_caught_up_after_a_member_of_the_group_was_in_the_way(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, kafka: Kafka, kafka_sink: KafkaSink
) -> None:
    """A group that consumers are members of takes no offsets."""
    write_source(tmp_path, EPOCHS * PARTICIPANTS)  # to compare with
    topic, group = kafka.new_topic("input", PARTICIPANTS), f"group-{uuid.uuid4().hex[:8]}"
    sink = kafka_sink.sink(f'report_offsets_to = "{group}"')
    job = write_job(tmp_path, sink, TRANSFORM, SOURCE, SPARK + CONF.format(topic=topic))

    driver = drivers.start(job, Fault("decide", "after", "stall", 1), Fault("complete", "after", "kill", 2), jvm=jvm)
    driver.stopped()
    with _member(kafka, group):
        driver.send(signal.SIGCONT)
        assert driver.exit_code() == KILLED, driver.reported
        driver.end()
    assert not driver.unfired
    assert f"source_not_reported job=e2e epoch=1 sink={kafka_sink.name}" in driver.reported
    assert (kafka_sink.epochs, kafka_sink.open) == (3, [])
    assert _committed(kafka, group, topic) == _ends(1), "the epochs before the member came"

    drivers.whole(job, jvm=jvm)
    assert kafka_sink.amiss(tmp_path) == {}
    assert _committed(kafka, group, topic) == _ends(EPOCHS), "no lag"


def _ends(epochs: int) -> dict[int, int]:
    """Return the offsets where so many epochs end, by partition."""
    return dict.fromkeys(range(PARTICIPANTS), epochs * ROWS_A_BATCH)


@contextmanager
def _member(broker: Kafka, group: str) -> Iterator[None]:
    """Be a member of a group meanwhile; it commits nothing."""
    topic = broker.new_topic("watched", 1)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])

        def joined() -> bool:
            consumer.poll(0.05)
            return bool(consumer.assignment())

        wait_until(joined, "a member of the group")
        yield


def _committed(broker: Kafka, group: str, topic: str) -> dict[int, int]:
    wanted = ConsumerGroupTopicPartitions(group)
    admin = broker.admin()  # held: without it no answer comes
    [answer] = admin.list_consumer_group_offsets([wanted], require_stable=True).values()
    return {p.partition: p.offset for p in answer.result(30).topic_partitions or () if p.topic == topic}
