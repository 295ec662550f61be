"""Task attempts that write to a topic, made by hand: no Spark, no coordinator."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from exactsink.contract import Committable, Txn
from exactsink_kafka.messages import Described
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Marking, Ticket, Transaction, Voted
from exactsink_kafka.wire import Wire
from exactsink_kafka.writer import KafkaWriter
from tests.servers.kafka import Kafka

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class Attempts:
    """The tasks of one job's sink `out`."""

    bootstrap: str
    cluster: str
    job: str
    given: Mapping[str, Any] = field(default_factory=dict)
    raises: bool = True

    def with_(self, **given: Any) -> Attempts:
        return replace(self, given={**self.given, **given})

    @property
    def options(self) -> KafkaOptions:
        standard = {"bootstrap_servers": self.bootstrap, "transaction_timeout_seconds": 60}
        return KafkaOptions.model_validate({**standard, **self.given})

    @property
    def ticket(self) -> Ticket:
        return Ticket.of_round(0, 4, self.cluster, Marking(raises=self.raises))

    def txn(self, attempt: int = 0) -> Txn:
        return Txn(self.job, 7, "out", 1, "0123456789abcdef", attempt, attempt)

    def id(self, attempt: int = 0) -> str:
        return str(self.ticket.id(self.txn(attempt)))

    def writer(self, schema: pa.Schema, attempt: int = 0) -> KafkaWriter:
        return KafkaWriter(self.options, self.txn(attempt), schema, self.ticket.dump())

    def voted(self, *batches: pa.RecordBatch, attempt: int = 0) -> Committable:
        writer = self.writer(batches[0].schema, attempt)
        for batch in batches:
            writer.write(batch)
        return writer.pre_commit()

    def commit(self, *committables: Committable) -> None:
        """Commit from here, as a driver does."""
        assert set(self.end(*[Voted.load(one).transaction for one in committables], commit=True)) == {0}

    def end(self, *transactions: Transaction, commit: bool) -> list[int]:
        with closing(self.wire()) as wire:
            return list(wire.end(transactions, commit=commit))

    def open_ids(self) -> list[Described]:
        with closing(self.wire()) as wire:
            return list(wire.ongoing(f"{self.job}."))

    def described(self, attempt: int = 0) -> Described:
        with closing(self.wire()) as wire:
            return wire.describe([self.id(attempt)])[self.id(attempt)]

    def wire(self) -> Wire:
        return Wire(KafkaOptions(bootstrap_servers=self.bootstrap), "exactsink-tests")


def attempts_on(bootstrap: str) -> Attempts:
    """Return a job of the caller's own on a cluster."""
    with closing(Wire(KafkaOptions(bootstrap_servers=bootstrap), "exactsink-tests")) as wire:
        cluster = wire.cluster()
    name = f"w{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return Attempts(bootstrap, cluster.id, name, raises=cluster.raises)


def rows(*pairs: tuple[Any, Any], **columns: pa.Array) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), **columns})


def written(kafka: Kafka, attempts: Attempts) -> Counter[Row]:
    return Counter((record.key, record.value) for record in kafka.rows(topic_of(attempts)))


def topic_of(attempts: Attempts) -> str:
    return str(attempts.given["topic"])
