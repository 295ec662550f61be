"""The columns writer's client: gathers a task's Arrow batches, and sends them as a few large requests.

Its only client library is kafka-python: the writer's other requests use the same connection.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError as Code

from exactsink.toolkit.waiting import attempts_within
from exactsink_kafka.columns import CODECS, HEAD_BYTES, Codec, Columns, Spread, batch_of, partitions_of, runs_of
from exactsink_kafka.errors import UNKNOWN_TOPIC, Failures
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.producer import Client, failure_of, refused_settings
from exactsink_kafka.records import Records
from exactsink_kafka.sender import Batch, Sender
from exactsink_kafka.wire import Wire

__all__ = ["ColumnsClient", "Settings"]

_MOST_GATHERED = 4 << 20
_SEQUENCES = 2**31 - 1
_UNKNOWN_PARTITION, _TOO_LARGE = -190, 10
_CODECS = ("compression.type", "compression.codec")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in `producer` that this client uses. It ignores those of librdkafka's queue, because it has none."""

    codec: Codec
    batch_size: int
    lifetime: float
    propagation: float

    @classmethod
    def of(cls, options: KafkaOptions, doing: str) -> Settings:
        """Read the settings from the options. Raises ConfigError for an invalid value."""
        given = options.producer
        numbers = {name: _number(name, value, doing) for name, value in given.items() if name not in _CODECS}
        name = str(next((given[name] for name in _CODECS if name in given), "none"))
        if name not in CODECS:
            raise refused_settings(doing, f"compression.type has to be one of {', '.join(CODECS)}")
        try:
            codec = Codec(name, numbers.get("compression.level"))
        except pa.ArrowException as error:
            raise refused_settings(doing, f"{name} has no such compression.level") from error
        lifetime = numbers.get("message.timeout.ms", numbers.get("delivery.timeout.ms", 300_000))
        size = min(numbers.get("batch.size", 262_144), options.record_limit[0])
        return cls(codec, size, lifetime / 1000, numbers.get("topic.metadata.propagation.max.ms", 30_000) / 1000)


class ColumnsClient(Client):
    """Sends a transaction's rows as record batches. It keeps batches until brokers have acknowledged them."""

    def __init__(
        self, wire: Wire, options: KafkaOptions, id: str, settings: Settings, failures: Failures, *, joins: bool
    ) -> None:
        assert options.topic is not None
        self.failures = failures
        self._wire = wire
        self._topic = options.topic
        self._id = id
        self._timeout = options.transaction_timeout_seconds
        self._settings = settings
        self._joins = joins
        self._largest = options.largest_row
        self._partitions = 0
        self._gathered: list[Records] = []
        self._gathered_bytes = 0
        self._sequences: dict[int, int] = {}

    def open(self, until: float) -> str:
        with self.failures.explaining():
            self._locate(until - time.monotonic())
            cluster: str = self._wire.ask(self._wire.about_cluster())[0]
            code, one = self._wire.begin(self._id, self._timeout)
        if code:
            raise self._refused(code)
        self._producer = one.producer
        self._sender = Sender(self._wire, self._topic, one, self.failures, joins=self._joins)
        return cluster

    def _locate(self, seconds: float) -> None:
        """Query the topic; try again while brokers do not know it, because it may be new."""
        for _ in attempts_within(min(seconds, self._settings.propagation), first_seconds=0.02, longest_seconds=0.5):
            if found := self._wire.topics([self._topic]):
                break
        else:
            raise self._refused(UNKNOWN_TOPIC)
        self._partitions = len(found[self._topic].partitions)
        spread = [p for p in range(self._partitions) if (self._topic, p) in self._wire.asker.leaders] or [0]
        self._spread = Spread(spread, self._settings.batch_size, random.randrange(len(spread)))

    def queue(self, records: Records, until: float) -> None:
        if not len(records.values):
            return
        if (largest := pc.max(records.sizes()).as_py()) > self._largest:
            raise self._refused(_TOO_LARGE, largest)
        if self._gathered and self._gathered[0].kinds != records.kinds:
            self._send(until)
        self._gathered.append(records)
        self._gathered_bytes += records.bytes
        if self._gathered_bytes >= min(self._partitions * self._settings.batch_size, _MOST_GATHERED):
            self._send(until)

    def deliver(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._send(until)
        self._sender.flush(self._due(until))

    def close(self) -> None:
        self._gathered.clear()

    def _send(self, until: float) -> None:
        records, self._gathered, self._gathered_bytes = self._gathered, [], 0
        for columns, named in _chunks(records):
            self._sender.send(self._batches(columns, named), self._due(until))

    def _due(self, until: float) -> float:
        return min(until, time.monotonic() + self._settings.lifetime)

    def _batches(self, columns: Columns, named: npt.NDArray[np.int64] | None) -> Iterator[Batch]:
        """Make a chunk's batches, with the next sequence numbers of their partitions."""
        if named is not None and int(named.max()) >= self._partitions:
            raise self._refused(_UNKNOWN_PARTITION)
        part = partitions_of(columns, named, self._partitions, self._spread)
        for run in runs_of(columns, part, self._settings.batch_size - HEAD_BYTES, int(time.time() * 1000)):
            sequence = self._sequences.get(run.partition, 0)
            self._sequences[run.partition] = (sequence + run.rows) & _SEQUENCES
            pieces = batch_of(run, self._settings.codec, self._producer, sequence)
            yield Batch(run.partition, run.rows, run.largest, pieces, sum(map(len, pieces)))

    def _refused(self, code: int, size: int = 0) -> Exception:
        failure = failure_of(Code(code), self._topic, size)
        return self.failures.cause(failure, self.hear, self.failed)


def _chunks(records: Sequence[Records]) -> Iterator[tuple[Columns, npt.NDArray[np.int64] | None]]:
    """Yield records in chunks of a few megabytes, or of one row, each with the partitions that its rows name."""
    if not records:
        return
    now = int(time.time() * 1000)
    values = pa.concat_arrays([one.values for one in records])
    keys = None if records[0].keys is None else pa.concat_arrays([one.keys for one in records])
    named = _numbers([one.partitions for one in records])
    times = _numbers([one.timestamps for one in records])
    if times is not None:
        times = np.where(times > 0, times, now)
    headers = None if records[0].headers is None else pa.concat_arrays([one.encoded_headers() for one in records])
    whole = Columns(values, keys, times, headers)
    ends, start = np.cumsum(whole.sizes), 0
    while start < len(values):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _MOST_GATHERED * 2, "right")))
        some = slice(start, stop)
        columns = (None if column is None else column[some] for column in (values, keys, times, headers))
        yield Columns(*columns), None if named is None else named[some]
        start = stop


def _numbers(columns: Sequence[pa.Array | None]) -> npt.NDArray[np.int64] | None:
    return None if columns[0] is None else pa.concat_arrays(columns).cast(pa.int64()).to_numpy()


def _number(name: str, given: object, doing: str) -> int:
    try:
        number = int(float(str(given)))
    except ValueError:
        raise refused_settings(doing, f"{name} is not a number") from None
    if number < (-1 if name == "compression.level" else 0):
        raise refused_settings(doing, f"{name} is too small")
    return number
