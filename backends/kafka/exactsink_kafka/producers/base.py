"""What a writer needs of a producer, whichever way rows get into it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

__all__ = ["RowProducer"]


class RowProducer(ABC):
    """A producer with one open transaction, which it never ends: not on failure, not when it is dropped.

    A closed producer of librdkafka's would abort, and an abort of one protocol version cannot be reported from a commit
    of another: so the driver alone ends transactions. All waiting is bounded; errors are ours.
    """

    @abstractmethod
    def open(self, seconds: float) -> str:
        """Take the transactional id, fencing its last user, and give the cluster's id."""

    @abstractmethod
    def begin(self) -> None:
        """Begin the transaction."""

    @abstractmethod
    def take(self, batch: pa.RecordBatch, seconds: float) -> None:
        """Queue a batch's rows, waiting for room where the queue is full. Raises what befell earlier rows, too."""

    @abstractmethod
    def flush(self, seconds: float) -> None:
        """Wait until the brokers have every row, on all in-sync replicas. Raises when they don't, in that time."""

    @abstractmethod
    def drop(self) -> None:
        """Let go of queue, threads and connections, and leave the transaction open. Idempotent."""
