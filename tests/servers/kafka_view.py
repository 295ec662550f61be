"""A test's view of a running Kafka: its own topics, and an independent reading of committed records."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from kafka.admin import KafkaAdminClient

from tests.servers.waiting import wait_until

_ANSWER = 30  # seconds for one call, of a broker that is up
_DECIDED = ["PrepareCommit", "PrepareAbort"]  # answered so, and not yet marked in the partitions


@dataclass(frozen=True, slots=True)
class Record:
    """One committed record. The timestamp is in milliseconds; headers keep their order and their doubles."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


class Kafka:
    """A running broker, for users who must not stop it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap  # host:port, the same after each restart

    def admin(self) -> AdminClient:
        """Return a new client of confluent-kafka's, without any limits."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})  # its calls raise

    def new_topic(self, stem: str, partitions: int = 2, copies: int = 1, **configs: str) -> str:
        """Make a topic of a unique name that takes records; return the name. A config's dots are underscores here."""
        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        self.make_topic(name, partitions, copies, **configs)
        return name

    def make_topic(self, name: str, partitions: int = 2, copies: int = 1, **configs: str) -> None:
        """Make a topic of this name, for example one that was deleted, in the same way as `new_topic`."""
        admin = self.admin()
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, copies, config=settings)])[name].result(_ANSWER)
        wait_until(lambda: _led(admin, name) == partitions, f"topic {name} to have leaders")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it no longer exists."""
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(_ANSWER)
        wait_until(lambda: _led(admin, topic) == 0, f"topic {topic} to be gone")

    def settle(self) -> None:
        """Wait until readers see the end of all transactions that are decided by now, in all their partitions."""
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap)

        def decided() -> set[str]:
            listed = client.list_transactions(state_filters=_DECIDED).values()
            return {transaction.transactional_id for on_broker in listed for transaction in on_broker}

        try:
            waited_for = decided()
            wait_until(lambda: not waited_for or not (waited_for & decided()), "decided transactions to be marked")
        finally:
            client.close()

    def rows(self, topic: str) -> list[Record]:
        """Read all records that are committed now, in every partition up to the first open transaction.

        Ordered by partition and offset. It has all records that were committed before the call: Kafka answers a commit
        before its rows are visible, so this waits for them. A read that can't be completed raises; it never omits rows.
        """
        self.settle()
        ends = self._ends(topic, IsolationLevel.READ_COMMITTED)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"reader-{uuid.uuid4().hex}",  # never joined: partitions are assigned
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "check.crcs": True,
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            return sorted(_read(consumer, topic, ends), key=lambda record: (record.partition, record.offset))
        finally:
            consumer.close()

    def held(self, topic: str) -> bool:
        """Return whether an open transaction holds readers back in any partition. A decided transaction does not."""
        self.settle()
        highs = self._ends(topic, IsolationLevel.READ_UNCOMMITTED)  # first: a later one holds nothing back
        return any(end < highs[number] for number, end in self._ends(topic, IsolationLevel.READ_COMMITTED).items())

    def ends(self, topic: str) -> dict[int, int]:
        """Return each partition's end for readers of committed records."""
        self.settle()
        return self._ends(topic, IsolationLevel.READ_COMMITTED)

    def _ends(self, topic: str, isolation: IsolationLevel) -> dict[int, int]:
        admin = self.admin()
        partitions = admin.list_topics(topic, timeout=_ANSWER).topics[topic].partitions
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}  # type: ignore[no-untyped-call]
        if not wanted:
            raise LookupError(f"there is no topic {topic}")
        found: dict[int, int] = {}

        def answered() -> bool:
            answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_ANSWER)
            try:
                found.update({place.partition: answer.result(_ANSWER).offset for place, answer in answers.items()})
            except KafkaException as error:
                if error.args[0].code() not in (5, 6, 74, 75):  # no leader yet, or a new one
                    raise
            return bool(found)

        wait_until(answered, f"the ends of {topic}")
        return found


def _read(consumer: Consumer, topic: str, ends: Mapping[int, int]) -> list[Record]:
    """Read until every partition's end was passed, by a record, or because the client reports that none is left."""
    passed = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=_ANSWER)[0] for n in ends}
    consumer.assign([TopicPartition(topic, number, first) for number, first in passed.items()])
    records: list[Record] = []

    def done() -> bool:
        for message in consumer.consume(10_000, timeout=0.02):
            error, record = message.error(), _record(message)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if error is None and record.offset < ends[record.partition]:
                records.append(record)
            passed[record.partition] = record.offset + (error is None)
        return all(passed[number] >= end for number, end in ends.items())

    wait_until(done, f"all records of {topic} up to {dict(ends)}")
    return records


def _record(message: Any) -> Record:
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
    )


def _led(admin: AdminClient, topic: str) -> int:
    """Count the topic's partitions that have a leader."""
    found = admin.list_topics(timeout=_ANSWER).topics.get(topic)
    return 0 if found is None else sum(partition.leader >= 0 for partition in found.partitions.values())
