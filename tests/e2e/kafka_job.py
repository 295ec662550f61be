"""Jobs with a Kafka sink: its part of the job's file, and what is amiss on the broker when they have ended."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.e2e.jobs import PARTICIPANTS, ROWS_AN_EPOCH, Row, row_of
from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until

__all__ = ["KafkaSink", "kafka_sink_of"]

_SINK = """
[sinks.{name}]
backend = "kafka"
bootstrap_servers = "{bootstrap}"
topic = "{topic}"
columns = ["id", "kind", "amount", "tags"]
value_format = "json"
key = ["id"]
{more}
"""
_LOOKALIKES = (
    "e2e-b.{sink}.g1-{token}.s0",  # another job, whose name begins like this one's
    "e2e.{sink}-b.g1-{token}.s0",  # a sink that this job does not have
    "e2e.{sink}.g1-theirs.s0",  # nobody's id, though it begins like one
)
_LONGEST = 900_000  # milliseconds: the most that a broker allows


@dataclass(frozen=True, slots=True, order=True)
class Transaction:
    """What the coordinator says of a transactional id. `started` in Unix seconds, 0 when nothing is open."""

    id: str
    producer_id: int
    producer_epoch: int
    state: str
    started: float


@dataclass(frozen=True)
class KafkaSink:
    """A job's sink, under a name that no other job has, and its empty topic. Foreign transactions are beside it."""

    broker: Kafka
    topic: str
    name: str
    foreign: Mapping[str, Transaction]

    def sink(self, more: str = "", way: str | None = None) -> str:
        """Return the sink for the job's file; `way` is how the job reaches the broker."""
        return _SINK.format(name=self.name, bootstrap=way or self.broker.bootstrap, topic=self.topic, more=more)

    @property
    def epochs(self) -> float:
        """Return how many epochs' rows a read_committed reader sees."""
        return len(self.broker.rows(self.topic)) / ROWS_AN_EPOCH

    @property
    def held(self) -> bool:
        """Return whether such a reader is held back by an open transaction."""
        return self.broker.held(self.topic)

    @property
    def ids(self) -> Mapping[str, Transaction]:
        """Return the sink's transactional ids that the broker has not forgotten."""
        found = _transactions(self.broker, f"e2e.{self.name}.g")
        return {name: one for name, one in found.items() if name not in self.foreign}

    @property
    def open(self) -> list[Transaction]:
        """List the sink's transactions that have neither been committed nor aborted."""
        return sorted(
            found for found in self.ids.values() if found.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
        )

    def until_ended(self) -> None:
        """Wait until the broker has ended what the sink's tasks left open: their time is over."""
        while self.open:
            time.sleep(0.2)  # each look is a connection

    def rows(self) -> Counter[Row]:
        """Return every committed row."""
        return Counter(row_of(json.loads(record.value or b"")) for record in self.broker.rows(self.topic))

    def amiss(self, folder: Path) -> Mapping[str, object]:
        """Return what is not as it must be once the job has ended: nothing, when all is well.

        Every committed row against the source's, one by one, its key, what is left open, and what became of the
        foreign transactions.
        """
        lines = [line for path in (folder / "source").glob("*.json") for line in path.read_text().splitlines()]
        wanted, seen = Counter(row_of(json.loads(line)) for line in lines), self.rows()
        keys = [(record.key, json.loads(record.value or b"")["id"]) for record in self.broker.rows(self.topic)]
        found = {
            "missing": sorted((wanted - seen).elements())[:5],
            "too often": sorted((seen - wanted).elements())[:5],
            "odd keys": [key for key, row in keys if key != str(row).encode()][:5],
            "held": self.held,
            "open": self.open,
            "foreign hurt": self.hurt(),
        }
        return {what: found for what, found in found.items() if found}

    def hurt(self) -> list[str]:
        """Return which foreign transaction is not the one that was begun, and open, any more."""
        standing = _standing(self.broker, self.name, self.foreign)
        return [name for name, begun in self.foreign.items() if standing.get(name) != begun]

    def trace(self) -> Mapping[str, object]:
        """Return all that a write would change: the records and where they stand, and every id's last use."""
        return {"records": self.broker.rows(self.topic), "held": self.held, "ids": self.ids}


@contextmanager
def kafka_sink_of(broker: Kafka) -> Iterator[KafkaSink]:
    """Make an output topic; foreign transactions, whose ids look much like the job's own, stand open until the end."""
    sink, token, theirs = f"out-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:8], broker.new_topic("theirs", 1)
    ids = [like.format(sink=sink, token=token) for like in _LOOKALIKES]
    producers = [_begun(broker, name, theirs) for name in ids]
    for producer in producers:
        producer.flush()
    foreign = _standing(broker, sink, ids)
    assert [begun.state for begun in foreign.values()] == ["Ongoing"] * len(_LOOKALIKES)
    try:
        yield KafkaSink(broker, broker.new_topic("output", PARTICIPANTS), sink, foreign)
    finally:
        for producer in producers:  # what is open counts against the broker
            with suppress(KafkaException):  # one that is down, or a hurt transaction: the test has reported it
                producer.abort_transaction(10)


def _begun(broker: Kafka, name: str, topic: str) -> Producer:
    settings = {"transactional.id": name, "transaction.timeout.ms": _LONGEST, "linger.ms": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **settings})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"theirs")
    return producer


def _standing(broker: Kafka, sink: str, ids: Iterable[str]) -> dict[str, Transaction]:
    found = {**_transactions(broker, f"e2e.{sink}"), **_transactions(broker, f"e2e-b.{sink}")}
    return {name: found[name] for name in ids if name in found}


def _transactions(broker: Kafka, prefix: str) -> Mapping[str, Transaction]:
    """Return all ids with this prefix that the broker knows, whatever became of their last transactions."""
    answers: list[Mapping[str, Transaction]] = []

    def answered() -> bool:
        # It is just coming up, or an id went between the two questions: ask again.
        with suppress(KafkaError, OSError), closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
            answers.append(_asked(admin, f"{re.escape(prefix)}.*"))
        return bool(answers)

    wait_until(answered, f"an answer about the transactions of {prefix}")
    return answers[-1]


def _asked(admin: KafkaAdminClient, pattern: str) -> Mapping[str, Transaction]:
    found = admin.list_transactions(transactional_id_pattern=pattern)
    ids = [listed.transactional_id for listings in found.values() for listed in listings]
    described = admin.describe_transactions(ids) if ids else {}
    return {
        name: Transaction(
            name, a.producer_id, a.producer_epoch, a.state.value, max(0, a.transaction_start_time_ms) / 1000
        )
        for name, a in described.items()
    }
