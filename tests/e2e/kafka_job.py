"""Jobs with a Kafka sink: its part of the job's file, and what is amiss on the broker when they have ended."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.e2e.jobs import PARTICIPANTS, ROWS_AN_EPOCH, Row, row_of
from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until

AS_THEY_COME = 'producer = {{ "batch.size" = 1000 }}'
"""Rows are sent as they come, so that a transaction is open while its task writes."""

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
    """A job's sink, under a name that no other job has, and its empty topic."""

    broker: Kafka
    topic: str
    name: str

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
        return _transactions(self.broker, f"e2e.{self.name}.g")

    @property
    def open(self) -> list[Transaction]:
        """List the sink's transactions that have neither been committed nor aborted."""
        return sorted(
            found for found in self.ids.values() if found.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
        )

    def rows(self) -> Counter[Row]:
        """Return every committed row."""
        return Counter(row_of(json.loads(record.value or b"")) for record in self.broker.rows(self.topic))

    def amiss(self, folder: Path) -> Mapping[str, object]:
        """Return what is not as it must be once the job has ended: nothing, when all is well.

        Every committed row against the source's, one by one, its key, and what is left open.
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
        }
        return {what: found for what, found in found.items() if found}

    def trace(self) -> Mapping[str, object]:
        """Return all that a write would change: the records and where they stand, and every id's last use."""
        return {"records": self.broker.rows(self.topic), "held": self.held, "ids": self.ids}


def kafka_sink_of(broker: Kafka) -> KafkaSink:
    """Make an output topic for a sink with a name of its own."""
    return KafkaSink(broker, broker.new_topic("output", PARTICIPANTS), f"out-{uuid.uuid4().hex[:8]}")


def _transactions(broker: Kafka, prefix: str) -> Mapping[str, Transaction]:
    """Return all ids with this prefix that the broker knows, whatever became of their last transactions."""
    answers: list[Mapping[str, Transaction]] = []

    def answered() -> bool:
        # It is just coming up, or an id went between the two questions: ask again.
        with suppress(KafkaError, OSError), closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
            answers.append(_asked(admin, prefix))
        return bool(answers)

    wait_until(answered, f"an answer about the transactions of {prefix}")
    return answers[-1]


def _asked(admin: KafkaAdminClient, prefix: str) -> Mapping[str, Transaction]:
    found = admin.list_transactions()  # brokers before 4.1 take no pattern
    listed = [one.transactional_id for listings in found.values() for one in listings]
    ids = [name for name in listed if name.startswith(prefix)]
    described = admin.describe_transactions(ids) if ids else {}
    return {
        name: Transaction(
            name, a.producer_id, a.producer_epoch, a.state.value, max(0, a.transaction_start_time_ms) / 1000
        )
        for name, a in described.items()
    }
