"""A job's only Kafka sink without Spark: the calls of its driver and its tasks, one by one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from itertools import count

import pyarrow as pa

from exactsink.contract import Committable, Committed, JobContext, Txn
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Voted
from exactsink_kafka.writer import KafkaWriter

__all__ = ["SMALL", "VALUE", "HandJob", "TimedWriter", "ms_since", "small_batch"]

SMALL = 100
"""The rows of a small batch."""

VALUE = 130
"""The bytes of a value."""

_SINK, _TOKEN = "topic", "0123456789ab"
_PARTITIONS = 16  # no epoch has more participants


class HandJob:
    """A job's only sink on a topic, for driver and tasks. Without a `lineage`, it writes no marks."""

    def __init__(self, options: KafkaOptions, lineage: str = _TOKEN) -> None:
        self.options = options
        self.context = JobContext(f"benchmark-{uuid.uuid4().hex[:8]}", _SINK, staging="", lineage=lineage)
        self.committer = self.new_committer()
        if lineage:
            self.committer.put_birth()
        self._epochs = count()
        self._attempts = count()

    def new_committer(self) -> KafkaCommitter:
        return KafkaCommitter(self.options, self.context)

    def open(self, participants: int) -> tuple[int, bytes]:
        """Begin an epoch. Return its number, and the ticket for its tasks."""
        epoch = next(self._epochs)
        return epoch, self.committer.open_epoch(epoch, small_batch().schema, participants)

    def writer(self, epoch: int, ticket: bytes, schema: pa.Schema) -> TimedWriter:
        """Open a writer for the next task attempt."""
        attempt = next(self._attempts)
        txn = Txn(self.context.job, epoch, _SINK, 1, _TOKEN, attempt % _PARTITIONS, attempt)
        return TimedWriter(self.options, txn, schema, ticket)

    def commit(self, epoch: int, votes: Sequence[Committable], committer: KafkaCommitter | None = None) -> float:
        """Commit as the coordinator does. Return the milliseconds."""
        started = time.perf_counter()
        outcomes = (committer or self.committer).commit(epoch, votes)
        taken = ms_since(started)
        assert outcomes == [Committed()] * len(votes)
        return taken


class TimedWriter(KafkaWriter):
    """The unchanged writer, with the time of the vote after all rows, including its mark."""

    vote_ms = 0.0

    def _vote(self) -> tuple[Voted, float]:
        started = time.perf_counter()
        vote = super()._vote()
        self.vote_ms = ms_since(started)
        return vote


def ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def small_batch() -> pa.RecordBatch:
    """Make a few rows with keys of many partitions."""
    return pa.record_batch(
        {
            "key": pa.array([str(number).encode() for number in range(SMALL)], pa.binary()),
            "value": pa.array([f"{number:0{VALUE}}".encode() for number in range(SMALL)], pa.binary()),
        }
    )
