"""From Kafka to Kafka: the driver is killed step after step, and every record arrives once."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions

from exactsink.testing import Fault
from tests.e2e.kafka_flow import Flow
from tests.e2e.lives import KILLED, Lives
from tests.e2e.postgres_job import PARTICIPANTS
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.kafka_fixtures"]

EPOCHS = 6


def test_killed_at_each_step_every_record_arrives_once_and_readers_are_held_no_longer_than_the_sweep(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, flow: Flow
) -> None:
    """A group that consumers are members of takes no offsets: that is reported, and no epoch fails for it."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    job = flow.job(tmp_path, flow.records_sink(f'report_offsets_to = "{group}"'), EPOCHS, "records")

    def killed(point: str, edge: str, epoch: int | None) -> tuple[float, int, bool]:
        """Return what a reader sees, in epochs, how many transactions are open, and whether they hold readers."""
        code, reported = lives.run(job, Fault(point, edge, "kill", epoch), jvm=jvm)  # type: ignore[arg-type]
        assert code == KILLED, reported
        assert flow.strangers.hurt() == []
        return flow.epochs, len(flow.open), flow.held

    orphans = (PARTICIPANTS, True)
    assert killed("open_epoch", "after", 0) == (0, 0, False)
    assert killed("vote", "before", 1) == (1, *orphans)
    assert killed("claim", "after", None) == (1, *orphans)
    assert killed("recommit", "after", None) == (1, *orphans), "what is undecided is not committed"
    assert killed("sweep", "after", None) == (1, 0, False), "the sweep lets readers go"
    assert killed("decide", "before", 1) == (1, *orphans)
    assert killed("decide", "after", 1) == (1, *orphans)
    assert killed(f"commit:{flow.sink}", "after", 1) == (2, 0, False), "committed by the recovery"
    assert killed("complete", "before", 2) == (3, 0, False)

    life = lives.start(job, Fault("decide", "after", "stall", 3), Fault("complete", "after", "kill", 4), jvm=jvm)
    life.stopped()
    with _member(flow.broker, group):
        life.send(signal.SIGCONT)
        assert life.exit_code() == KILLED, life.reported
        life.end()
    assert not life.unfired
    assert f"source_not_reported job=e2e epoch=3 sink={flow.sink}" in life.reported
    assert (flow.epochs, flow.open) == (5, [])
    assert _committed(flow.broker, group, flow.input.topic) == flow.input.ends(3), "the epochs before the member came"
    assert killed("return", "after", 4) == (5, 0, False)

    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert flow.amiss(EPOCHS) == {}
    assert _committed(flow.broker, group, flow.input.topic) == flow.input.ends(EPOCHS), "no lag"


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
