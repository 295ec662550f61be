"""A private Kafka broker for benchmarks, set up as in production, with a new topic for each run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from tests.servers.kafka import KafkaServer, own_kafka
from tests.servers.kafka_jars import VERSION
from tests.servers.waiting import wait_until

from benchmarks.kafka_log import count_records
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.options import KafkaOptions

__all__ = ["PARTITIONS", "Served", "Target", "serving"]

PARTITIONS = 4
"""The partitions of a topic."""

_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_SETTINGS = {  # Kafka's defaults where the tests' broker differs, so that it behaves as in production
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "log.segment.delete.delay.ms": "0",  # not the default: a deleted topic is gone before the next run
}
_ANSWER = 30  # seconds


@dataclass(frozen=True, slots=True)
class Served:
    """A running broker."""

    server: KafkaServer

    @property
    def notes(self) -> Sequence[str]:
        """Describe the broker."""
        return [
            f"Apache Kafka {VERSION}, one private broker on the same machine, JVM {' '.join(_JVM)}; no replicas",
            f"a new topic of {PARTITIONS} partitions each run; its records are counted by offsets, nothing is aborted",
            f"the broker's data lies below {tempfile.gettempdir()} (TMPDIR); cpu_s counts the broker",
        ]

    def options(self, topic: str, **given: object) -> KafkaOptions:
        """Return a sink's options for a topic."""
        return KafkaOptions.model_validate({"bootstrap_servers": self.server.bootstrap, "topic": topic, **given})

    def backend(self, topic: str, **given: object) -> KafkaBackend:
        """Return exactsink's backend for a topic."""
        return KafkaBackend(self.options(topic, **given))


class Target:
    """One topic at a time: made for a run, then checked and deleted while the clock is stopped."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._admin = served.server.admin()
        self._topic = ""
        self._filled: tuple[int, int | None] = (0, 0)

    def fresh(self) -> str:
        """Check the run before, then make a topic and return its name."""
        self.close()
        self._topic = self.served.server.new_topic("run", PARTITIONS)
        return self._topic

    def filled(self, rows: int, transactions: int | None = None) -> Mapping[str, float]:
        """Record that a run is over, with its rows and transactions. Each transaction wrote to every partition in use.

        If the number of transactions is not known, records are counted in the broker's files.
        """
        self._filled = (rows, transactions)
        return {"rows": rows}

    def visible(self) -> bool:
        """Return whether readers of committed records see all records, because no transaction is open."""
        return self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED)

    def close(self) -> None:
        """Check the records of the last run, and delete its topic. Idempotent."""
        topic = self._topic
        if not topic:
            return
        self._check()
        self._topic, self._filled = "", (0, 0)
        self.served.server.delete_topic(topic)
        data = self.served.server.folder / "data"
        wait_until(lambda: not list(data.glob(f"{topic}*")), f"the files of {topic} to be gone")

    def records(self) -> int:
        """Count the records of the last run, after checking that readers of committed records see all of them."""
        self.served.server.settle()
        assert self.visible(), f"an open transaction holds {self._topic}"
        indexes = self.served.server.folder.glob(f"data/{self._topic}-*/*.txnindex")
        assert not any(index.stat().st_size for index in indexes), f"rows of {self._topic} were aborted"
        _, transactions = self._filled
        if transactions is None:
            return count_records(self.served.server.folder / "data", self._topic)
        # By offsets: a partition holds its records, and a marker for each transaction.
        ends = self._ends(IsolationLevel.READ_COMMITTED)
        return sum(ends.values()) - transactions * sum(end > 0 for end in ends.values())

    def _check(self) -> None:
        found, (rows, _) = self.records(), self._filled
        assert found == rows, f"{found} records are there, and {rows} were written"

    def _ends(self, isolation: IsolationLevel) -> Mapping[int, int]:
        return _ends(self._admin, self._topic, isolation)


def _ends(admin: AdminClient, topic: str, isolation: IsolationLevel) -> Mapping[int, int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, number): latest for number in range(PARTITIONS)}
    found = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_ANSWER)
    return {partition.partition: answer.result(_ANSWER).offset for partition, answer in found.items()}


@contextmanager
def serving() -> Iterator[Served]:
    """Make and start a broker. It is removed at the end of the block."""
    with own_kafka(_SETTINGS, jvm=_JVM) as server:
        yield Served(server)
