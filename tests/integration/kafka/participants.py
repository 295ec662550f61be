"""Participants of a `kafka` sink, written with librdkafka and decided in a manual session: no driver, no writer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from exactsink.contract import Committable, JobContext, Outcome, Txn
from exactsink.testing import Session
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import PAYLOAD_VERSION, PoolId, Transaction, Voted, Written
from exactsink_kafka.wire import Wire
from tests.assessed import commit_assessed
from tests.servers.kafka_view import Kafka
from tests.servers.waiting import wait_until

TOKEN = "0123456789abcdef"
_ANSWER = 60  # seconds


@dataclass(frozen=True)
class Participants:
    """One job's sink `out` into a topic of its own."""

    kafka: Kafka
    topic: str
    job: str
    wire: Wire
    producers: list[Producer] = field(default_factory=list)
    """Kept, never closed: that would abort what they began."""

    @classmethod
    @contextmanager
    def of(cls, kafka: Kafka, partitions: int = 2, **configs: str) -> Iterator[Participants]:
        wire = Wire(KafkaOptions(bootstrap_servers=kafka.bootstrap), f"test {uuid.uuid4().hex}")
        topic = kafka.new_topic("rows", partitions, **configs)
        made = cls(kafka, topic, f"job-{uuid.uuid4().hex[:12]}", wire)
        try:
            yield made
        finally:
            wire.close()
            made.producers.clear()

    @property
    def options(self) -> KafkaOptions:
        return KafkaOptions(bootstrap_servers=self.kafka.bootstrap, topic=self.topic)

    @property
    def session(self) -> Session:
        """A new driver for each of its calls."""
        return Session(KafkaBackend(self.options), self.ctx, TOKEN)

    @property
    def ctx(self) -> JobContext:
        return JobContext(self.job, "out", "", 1)

    def committer(self) -> KafkaCommitter:
        return KafkaCommitter(self.options, self.ctx)

    def id(self, slot: int) -> str:
        return str(PoolId(self.job, "out", 1, TOKEN, slot))

    def begin(self, slot: int | str, *values: str, timeout: float = 60, topic: str | None = None) -> Producer:
        """Write in a transaction, value by value to the partitions in turn, and leave it open."""
        name = slot if isinstance(slot, str) else self.id(slot)
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": int(timeout * 1000),
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.producers.append(producer)
        producer.init_transactions(_ANSWER)
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(topic or self.topic, value.encode(), key=b"k", partition=number % 2)
        assert producer.flush(_ANSWER) == 0
        return producer

    def wide(self, slot: int, partitions: int) -> None:
        """Write a row into each of many partitions, and leave it open."""
        producer = self.begin(slot)
        for number in range(partitions):
            producer.produce(self.topic, str(slot).encode(), partition=number)
        assert producer.flush(_ANSWER) == 0

    def again(self) -> str:
        """Delete the topic and make it again; return its new id."""
        self.kafka.delete_topic(self.topic)
        admin = self.kafka.admin()  # kept until the answer is there
        admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(_ANSWER)
        wait_until(lambda: self.topic in self.wire.topics([self.topic]), "the topic to be there")
        return self.wire.topics([self.topic])[self.topic].id

    def delete_records(self, partition: int, end: int) -> None:
        """Delete a partition's records before an offset."""
        admin, place = self.kafka.admin(), TopicPartition(self.topic, partition, end)
        admin.delete_records([place])[place].result(_ANSWER)

    def vote(self, slot: int, *values: str, timeout: float = 60) -> Committable:
        """Voted as a task does: write, and name the open transaction and where its rows begin."""
        self.begin(slot, *values, timeout=timeout)
        return self.committable(slot, len(values))

    def votes(self, count: int, first: int = 0, **settings: Any) -> list[Committable]:
        """Voted in so many tasks at a time, each with two rows."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda slot: self.begin(slot, *_rows(slot), **settings), range(first, first + count)))
        return [self.committable(slot, 2) for slot in range(first, first + count)]

    def committable(self, slot: int, rows: int) -> Committable:
        found = self.wire.describe([self.id(slot)])[self.id(slot)]
        rows_there = self.wire.rows_of(found.transaction, found.partitions)
        topic_id = self.wire.topics([self.topic])[self.topic].id
        written = Written(self.topic, topic_id, {partition: r.first_offset for (_, partition), r in rows_there.items()})
        vote = Voted(found.transaction, self.wire.cluster().id, (written,))
        txn = Txn(self.job, 0, "out", 1, TOKEN, slot, slot)
        return Committable(txn, rows, vote.dump(), PAYLOAD_VERSION, store_ref=found.transaction.ref)

    def commit(self, *committables: Committable) -> list[str]:
        """Commit in a new driver, and name the outcomes."""
        return kinds(self.outcomes(*committables))

    def outcomes(self, *committables: Committable) -> list[Outcome]:
        return commit_assessed(self.session, 0, committables)

    def end(self, *committables: Committable, commit: bool) -> list[int]:
        """End transactions as another driver would, and give the brokers' codes."""
        return list(self.wire.end([transaction_of(one) for one in committables], commit=commit))

    def values(self) -> list[str]:
        """Read what is committed."""
        return sorted(record.value.decode() for record in self.kafka.rows(self.topic) if record.value is not None)


def transaction_of(committable: Committable) -> Transaction:
    return Voted.load(committable).transaction


def kinds(outcomes: Sequence[object]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


def _rows(slot: int) -> tuple[str, str]:
    return f"{slot}-a", f"{slot}-b"
