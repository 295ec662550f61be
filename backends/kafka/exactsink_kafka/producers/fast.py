"""The fast writer: an Arrow batch becomes an array of librdkafka's messages, without a Python step per row."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactsink_kafka.producers.base import RowProducer
from exactsink_kafka.producers.columns import Records
from exactsink_kafka.producers.failures import FULL, UNDECIDED, Failures
from exactsink_kafka.producers.handle import Handle
from exactsink_kafka.producers.library import MESSAGE, Library

__all__ = ["FastProducer"]

_SLICE = 0.5  # seconds: how long a call may keep the thread from hearing that its task is killed
_ROOM = 0.01
_AT_ONCE = 20_000


class FastProducer(RowProducer):
    """A producer of one topic's keys, values and partitions. librdkafka copies the rows out of Arrow's memory."""

    def __init__(self, library: Library, settings: Mapping[str, str], topic: str, doing: str) -> None:
        self._topic = topic
        self._doing = doing
        self._failures = Failures(doing)
        self._handle: Handle | None = Handle(library, settings, topic, self._failures, doing)

    def open(self, seconds: float) -> str:
        """See base, and the plain writer for why to ask twice."""
        handle, until = self._live(), time.monotonic() + seconds
        for _ in range(2):
            handle.metadata(until - time.monotonic())
        cluster = handle.cluster_id(until - time.monotonic())
        handle.init_transactions(until - time.monotonic())
        return cluster

    def begin(self) -> None:
        self._live().begin_transaction()

    def take(self, batch: pa.RecordBatch, seconds: float) -> None:
        until = time.monotonic() + seconds
        for start in range(0, batch.num_rows, _AT_ONCE):
            self._failures.check(self._live().reported)
            records = Records(batch.slice(start, _AT_ONCE), self._topic, self._doing)
            self._queue(_messages(records), records.partitions is not None, until)
        self._live().hear(0)
        self._failures.check(self._live().reported)

    def flush(self, seconds: float) -> None:
        handle, until = self._live(), time.monotonic() + seconds
        while left := handle.flush(min(_SLICE, until - time.monotonic())):
            self._failures.check(self._live().reported)
            if time.monotonic() >= until:
                raise self._failures.late(f"{left} rows did not reach the brokers", f"{seconds:.0f} s were left")
        self._failures.check(self._live().reported)

    def drop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.purge()
            handle.close()

    def _queue(self, messages: npt.NDArray[np.void], to_partitions: bool, until: float) -> None:
        """Hand messages over, those that find no room again, in their order.

        Waiting within librdkafka is no way: failed rows keep their room until they are heard of here.
        """
        handle = self._live()
        while handle.produce(messages, to_partitions=to_partitions) < len(messages):
            messages = messages[messages["err"] != 0].copy()
            if (other := messages["err"][messages["err"] != FULL]).size:
                raise handle.failure(int(other[0]))
            handle.hear(_ROOM)
            self._failures.check(self._live().reported)
            if time.monotonic() >= until:
                raise self._failures.late("the brokers take no more rows", "the queue stayed full")
            messages["err"] = 0

    def _live(self) -> Handle:
        if self._handle is None:
            raise ValueError(f"{self._doing}: this writer was let go; {UNDECIDED}")
        return self._handle


def _messages(records: Records) -> npt.NDArray[np.void]:
    """Make messages that point into the columns' memory, which has to live until they are copied."""
    messages = np.zeros(len(records.values), MESSAGE)
    messages["payload"], messages["len"] = _places(records.values)
    if records.keys is not None:
        messages["key"], messages["key_len"] = _places(records.keys)
    if records.partitions is not None:
        messages["partition"] = records.partitions.to_numpy()
    return messages


def _places(values: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return where each value begins, 0 for NULL, and how long it is. An empty value has a place."""
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets, width, len(values) + 1, values.offset * np.dtype(width).itemsize).astype(np.uint64)
    base = data.address if data is not None and data.address else offsets.address  # any but 0: nothing is read there
    begins, lengths = at[:-1] + np.uint64(base), np.diff(at)
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        begins[null] = 0
        lengths[null] = 0
    return begins, lengths
