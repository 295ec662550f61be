"""Jobs that read a Kafka topic and write another: their input, their sink, and what is amiss when they have ended."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from tests.e2e.jobs import ROWS_A_BATCH, SPARK, write_job
from tests.e2e.kafka_source import CONF, SOURCE
from tests.e2e.kafka_strangers import KafkaStrangers
from tests.e2e.kafka_transactions import OPEN, Transaction, transactions
from tests.e2e.postgres_job import PARTICIPANTS, ROWS_AN_EPOCH
from tests.e2e.rows import row_of, wrong_rows
from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until

__all__ = ["Flow", "Input", "fill", "flow_of"]

_EPOCHS = 10
_ABORTED = 9
_STEP = ROWS_A_BATCH + _ABORTED + 1
"""Offsets of a partition in one epoch: its rows, some more that were aborted, and the marker of that."""
_SINK = """
[sinks.{name}]
backend = "kafka"
bootstrap_servers = "{bootstrap}"
topic = "{topic}"
{more}
"""
_RECORDS = 'columns = ["key", "value"]\n'
_ROWS = 'columns = ["id", "kind", "amount", "tags"]\nvalue_format = "json"\nkey = ["id"]\n'

Pair = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class Input:
    """A topic that was filled once, with as many rows an epoch as other jobs have: a task for each of two partitions.

    `lines` are the rows as JSON, by epoch and partition.
    """

    broker: Kafka
    topic: str
    lines: tuple[tuple[tuple[str, ...], ...], ...]

    def write_files(self, folder: Path, epochs: int) -> None:
        """Write so many epochs' rows to where other jobs' sources stand, for those who compare with them."""
        (folder / "source").mkdir()
        for epoch, partitions in enumerate(self.lines[:epochs]):
            for partition, lines in enumerate(partitions):
                (folder / "source" / f"{epoch}-{partition}.json").write_text("\n".join(lines))

    def records(self, epochs: int) -> Counter[Pair]:
        """Return the key and the value of every committed record, of so many epochs."""
        return Counter(_pair(line) for partitions in self.lines[:epochs] for lines in partitions for line in lines)

    def ends(self, epochs: int) -> dict[int, int]:
        """Return the offsets where so many epochs end, by partition."""
        return dict.fromkeys(range(PARTICIPANTS), epochs * _STEP)


@dataclass(frozen=True)
class Flow:
    """One job's way from an input to an empty topic of its own, through a sink whose name no other job's has.

    Strangers are beside it, with open transactions.
    """

    input: Input
    broker: Kafka
    topic: str
    sink: str
    strangers: KafkaStrangers

    def job(self, folder: Path, sinks: str, epochs: int, transform: str, job: str = "", spark: str = SPARK) -> Path:
        """Write the file of a job that reads so many epochs in all, by a transform of `kafka_source`."""
        source = {"bootstrap": self.input.broker.bootstrap, "topic": self.input.topic, "of": PARTICIPANTS}
        spark += CONF.format(**source, step=_STEP, batches=epochs)
        return write_job(folder, sinks, f'transform = "tests.e2e.kafka_source:{transform}"\n{job}', SOURCE, spark)

    def records_sink(self, more: str = "", way: str | None = None) -> str:
        """Return the sink for `records`; `way` is how the job reaches the broker."""
        return self._sink(_RECORDS + more, way)

    def rows_sink(self, more: str = "", way: str | None = None) -> str:
        """Return the sink for `rows`: JSON, with the id for a key."""
        return self._sink(_ROWS + more, way)

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
        found = transactions(self.broker, f"e2e.{self.sink}.g")
        return {name: one for name, one in found.items() if "theirs" not in name}

    @property
    def open(self) -> list[Transaction]:
        """List the sink's transactions that have neither been committed nor aborted."""
        return sorted(found for found in self.ids.values() if found.state in OPEN)

    def until_ended(self) -> None:
        """Wait until the broker has ended what the sink's tasks left open: their time is over."""
        while self.open:
            time.sleep(0.2)  # each look is a connection

    def amiss(self, epochs: int) -> Mapping[str, object]:
        """Return what is not as it must be once a job of `records` has ended: nothing, when all is well.

        Every committed record against the input's, one by one; what is left open; and what became of the strangers'.
        """
        wanted = self.input.records(epochs)
        seen = Counter((record.key, record.value) for record in self.broker.rows(self.topic))
        missing, too_often = sorted((wanted - seen).elements()), sorted((seen - wanted).elements())
        return _found({"missing": missing[:5], "too often": too_often[:5], **self._left})

    def amiss_rows(self, folder: Path) -> Mapping[str, object]:
        """Return the same of a job whose rows come from files in this folder, or are there, too."""
        rows = [(record.key, json.loads(record.value or b"")) for record in self.broker.rows(self.topic)]
        odd_keys = [key for key, row in rows if key != str(row["id"]).encode()]
        wrong = wrong_rows(folder, sinks=(), also={self.sink: Counter(row_of(row) for _, row in rows)})
        return _found({"wrong rows": wrong, "odd keys": odd_keys[:5], **self._left})

    @property
    def _left(self) -> Mapping[str, object]:
        return {"held": self.held, "open": self.open, "strangers hurt": self.strangers.hurt()}

    def trace(self) -> Mapping[str, object]:
        """Return all that a write would change: the records and where they stand, and every id's last use."""
        return {"records": self.broker.rows(self.topic), "held": self.held, "ids": self.ids}

    def _sink(self, more: str, way: str | None) -> str:
        return _SINK.format(name=self.sink, bootstrap=way or self.broker.bootstrap, topic=self.topic, more=more)


def fill(broker: Kafka) -> Input:
    """Make a topic and fill it: after each epoch's rows come some of an aborted transaction, which no reader sees."""
    topic = broker.new_topic("input", PARTICIPANTS)
    lines = tuple(tuple(_lines(epoch * PARTICIPANTS + n) for n in range(PARTICIPANTS)) for epoch in range(_EPOCHS))
    settings = {"bootstrap.servers": broker.bootstrap, "linger.ms": 5}
    plain = Producer({**settings, "enable.idempotence": True})
    aborting = Producer({**settings, "transactional.id": f"{topic}.filler"})
    aborting.init_transactions()
    for partitions in lines:
        for number, rows in enumerate(partitions):
            for line in rows:
                key, value = _pair(line)
                plain.produce(topic, value, key, number)
        plain.flush()
        aborting.begin_transaction()
        for number in range(PARTICIPANTS):
            for _ in range(_ABORTED):
                aborting.produce(topic, b"aborted", b"aborted", number)
        aborting.flush()
        aborting.abort_transaction()
        wait_until(lambda: not broker.held(topic), "the aborted transaction's markers, which the next rows come after")
    return Input(broker, topic, lines)


@contextmanager
def flow_of(broker: Kafka, input: Input) -> Iterator[Flow]:
    """Make an output topic, with strangers beside it who leave at the end."""
    sink = f"out-{uuid.uuid4().hex[:8]}"
    strangers = KafkaStrangers(broker, sink)
    strangers.arrive()
    try:
        yield Flow(input, broker, broker.new_topic("output", PARTICIPANTS), sink, strangers)
    finally:
        strangers.leave()


def _lines(file: int) -> tuple[str, ...]:
    first = file * ROWS_A_BATCH
    rows = ({"id": first + n, "kind": f"k{n % 3}", "amount": n / 4, "tags": {"n": n}} for n in range(ROWS_A_BATCH))
    return tuple(json.dumps(row) for row in rows)


def _pair(line: str) -> Pair:
    return str(json.loads(line)["id"]).encode(), line.encode()


def _found(things: Mapping[str, object]) -> Mapping[str, object]:
    return {what: found for what, found in things.items() if found}
