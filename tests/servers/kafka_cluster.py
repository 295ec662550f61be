"""A Kafka cluster of three brokers, which are also controllers. Any broker may be killed without a loss of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from confluent_kafka import KafkaException, TopicCollection

from tests.servers.kafka import Kafka, KafkaServer
from tests.servers.kafka_jars import BROKER, JarSet
from tests.servers.ports import Ports
from tests.servers.waiting import wait_until

COPIES = 3
_SETTINGS = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "unclean.leader.election.enable": "false",
}


class KafkaCluster(Kafka):
    """Running brokers that can be stopped and started one by one. Each has a copy of each topic; two must run."""

    def __init__(self, brokers: list[KafkaServer]) -> None:
        super().__init__(",".join(broker.bootstrap for broker in brokers))
        self.brokers = brokers

    def leader(self, topic: str) -> KafkaServer:
        """Return the broker that leads a topic's partition 0. For Kafka's own topics, it is the coordinator."""
        admin = self.admin()
        led = admin.describe_topics(TopicCollection([topic]))[topic].result(30).partitions[0].leader
        return self.brokers[led.id - 1]

    def wait_whole(self, *topics: str) -> None:
        """Wait until all brokers have all data of these topics and Kafka's own. Then any broker may be killed."""
        named = TopicCollection([*topics, "__consumer_offsets", "__transaction_state"])
        admin = self.admin()

        def whole() -> bool:
            try:
                found = [answer.result(30) for answer in admin.describe_topics(named).values()]
            except KafkaException:  # the answer was lost, because a broker has just been stopped
                return False
            return all(len(partition.isr) == COPIES for topic in found for partition in topic.partitions)

        wait_until(whole, f"all copies of {', '.join(topics)} to be in sync")


@contextmanager
def own_cluster(settings: Mapping[str, str] | None = None, release: JarSet = BROKER) -> Iterator[KafkaCluster]:
    """Start a cluster for one owner. It takes about 10 seconds to make."""
    given = {**_SETTINGS, **(settings or {})}
    with ExitStack() as stack:
        ports = {node: Ports(2) for node in range(1, COPIES + 1)}
        voters = ",".join(f"{node}@127.0.0.1:{held.numbers[1]}" for node, held in ports.items())
        brokers: list[KafkaServer] = []
        for node, held in ports.items():
            own = {**given, "node.id": str(node), "controller.quorum.voters": voters}
            brokers.append(KafkaServer(own, ports=held, copy=brokers[0] if brokers else None, release=release))
            stack.callback(brokers[-1].remove)
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_ready()
        yield KafkaCluster(brokers)
