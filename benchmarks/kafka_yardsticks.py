"""Yardsticks for exactsink's Kafka writers. Spark's workers import this module, so it is light.

They are a loop that a careful user writes by hand, and exactsink's plain writer without transactions: at least once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.null_backend import NullCommitter
from exactsink.contract import Committable, Committer, JobContext, Traits, Txn, Writer
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.errors import Failure, Failures
from exactsink_kafka.options import KafkaOptions, producer_settings
from exactsink_kafka.producer import PlainClient, RowProducer

__all__ = ["AtLeastOnce", "BareLoop"]

_SECONDS = 600.0
_OURS = ("transactional.id", "transaction.timeout.ms", "delivery.report.only.error")
"""Settings of exactsink's writers that a loop lacks, or sets itself."""


@dataclass(frozen=True, slots=True)
class BareLoop:
    """Write a partition's keys and values in a transaction, and commit it: a function for `mapInArrow`.

    `settings` are librdkafka's, the same as exactsink's writers'. `run` names the transactional ids.
    """

    settings: Mapping[str, str]
    topic: str
    run: str

    @classmethod
    def like(cls, options: KafkaOptions, run: str) -> BareLoop:
        """Make a loop with the settings that exactsink's writers use for these options."""
        assert options.topic is not None
        return cls(_without_transactions(producer_settings(options, run, "bare")), options.topic, run)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # other users of this module need no Spark

        context = TaskContext.get()
        assert context is not None
        producer = Producer({**self.settings, "transactional.id": f"{self.run}-{context.taskAttemptId()}"})
        producer.init_transactions(_SECONDS)
        producer.begin_transaction()
        rows = 0
        for batch in batches:
            self._produce(producer, batch)
            producer.poll(0)
            rows += batch.num_rows
        producer.flush(_SECONDS)
        producer.commit_transaction(_SECONDS)
        yield pa.record_batch({"rows": pa.array([rows], pa.int64())})

    def _produce(self, producer: Producer, batch: pa.RecordBatch) -> None:
        produce, topic = producer.produce, self.topic
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.02)


class AtLeastOnce(KafkaBackend):
    """exactsink's plain writer without a transaction: idempotent, flushed before the vote, with nothing to decide."""

    @property
    def traits(self) -> Traits:
        return Traits()

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _Writer(self.options, txn)

    def committer(self, ctx: JobContext) -> Committer:
        return NullCommitter()


class _Writer(Writer):
    def __init__(self, options: KafkaOptions, txn: Txn) -> None:
        assert options.topic is not None
        self._txn = txn
        self._rows = 0
        given = _without_transactions(producer_settings(options, "", "at least once"))
        failures = Failures("write", options)
        self._producer = RowProducer(_Plain(given, options.topic, failures, "write"), options.topic, "write")
        self._producer.open(_SECONDS)

    def write(self, batch: pa.RecordBatch) -> None:
        self._producer.take(batch, _SECONDS)
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        self._producer.flush(_SECONDS)
        self.abort()
        return Committable(self._txn, self._rows, b"")

    def abort(self) -> None:
        self._producer.drop()


class _Plain(PlainClient):
    """The plain client, without its transaction."""

    def open(self, until: float) -> str:
        """Connect, without a transactional id."""
        return str(self._producer.cluster_id(timeout=max(0.0, until - time.monotonic())))

    def failed(self) -> Failure | None:
        """Report nothing, because rows report their own errors, and there is no transaction."""
        return None


def _without_transactions(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in _OURS}
