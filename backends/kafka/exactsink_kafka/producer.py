"""A task's producer: it writes rows in one transaction, and leaves it open.

`PlainClient` calls confluent-kafka for each row, and accepts every column that a record can have.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from exactsink.contract import ConfigError
from exactsink_kafka.errors import UNDECIDED, Failure, Failures
from exactsink_kafka.records import Header, Records

__all__ = ["Client", "PlainClient", "RowProducer", "failure_of", "refused_settings"]

_SLICE = 0.5  # seconds: no call takes longer, so that a killed task notices it
_ROOM = 0.02
_AT_ONCE = 20_000


class Client(ABC):
    """Send rows in one transaction. Failures of rows are noted in `failures`; a call that fails raises."""

    failures: Failures

    @abstractmethod
    def open(self, until: float) -> str:
        """Take the transactional id, which fences its last user, and return the cluster's id. No row is sent yet."""

    @abstractmethod
    def queue(self, records: Records, until: float) -> None:
        """Queue records in their order, waiting for room until a moment (monotonic)."""

    @abstractmethod
    def deliver(self, seconds: float) -> None:
        """Wait until the brokers have every row. Raises if they don't after `seconds`."""

    def failed(self) -> Failure | None:
        """Return why the transaction failed, if the client reports that only on request."""
        return None

    def hear(self, seconds: float) -> None:  # noqa: B027 - a client that raises failures at once has none to note
        """Note failures that were reported; wait up to `seconds` for the first one."""

    @abstractmethod
    def close(self) -> None:
        """Close queue, threads and connections. An open transaction stays open."""


class RowProducer:
    """A producer with one open transaction, which it never ends: neither on failure nor when it is dropped.

    Only the driver ends transactions, because an abort by one protocol version can look like a commit by another.
    (librdkafka aborts when a producer is closed.) Every wait is bounded. Every error is one of exactsink.
    """

    def __init__(self, client: Client, topic: str | None, doing: str, header: Header | None = None) -> None:
        self._client: Client | None = client
        self._header = header
        self._topic = topic
        self._doing = doing

    def open(self, seconds: float) -> str:
        """Take the transactional id within `seconds`, and return the cluster's id."""
        return self._live().open(time.monotonic() + seconds)

    def take(self, batch: pa.RecordBatch, seconds: float) -> None:
        """Queue a batch's rows; wait up to `seconds` for room. Also raises if an earlier row has failed."""
        client, until = self._live(), time.monotonic() + seconds
        for start in range(0, batch.num_rows, _AT_ONCE):
            client.failures.check(client.failed)
            records = Records(batch.slice(start, _AT_ONCE), self._topic, self._doing, self._header)
            client.queue(records, until)
        client.hear(0)
        client.failures.check(client.failed)

    def flush(self, seconds: float) -> None:
        """Wait until all in-sync replicas have every row. Raises if they don't after `seconds`."""
        self._live().deliver(seconds)

    def drop(self) -> None:
        """Close the client, and leave the transaction open. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _live(self) -> Client:
        if self._client is None:
            raise ValueError(f"{self._doing}: this writer was closed; {UNDECIDED}")
        return self._client


class PlainClient(Client):
    """A `confluent_kafka.Producer`. Its callbacks refer only to `failures`, so dropping it frees it at once."""

    def __init__(
        self,
        settings: Mapping[str, str],
        topic: str | None,
        failures: Failures,
        doing: str,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        """Make the producer. Another thread calls `beside` while the client connects."""
        self._topic, self._beside = topic, beside
        self.failures = failures

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.add(
                    failure_of(error, message.topic(), len(message.key() or b"") + len(message.value() or b""))
                )

        def heard(error: KafkaError) -> None:
            (failures.add if error.fatal() else failures.note)(failure_of(error))

        own = {"delivery.report.only.error": True, "on_delivery": delivered, "error_cb": heard}  # a bool, not text
        try:
            self._producer = Producer({**settings, **own})
            return
        except (KafkaException, TypeError, ValueError) as error:
            why = failure_of(error.args[0]).text if isinstance(error, KafkaException) else str(error)
        raise refused_settings(doing, why, settings.values())  # without a cause, which would show the value

    def open(self, until: float) -> str:
        """Query the topic twice, because librdkafka drops its bootstrap connection after the first answer.

        Else the query for the coordinator could fail on that connection, and would be repeated only after 0.5 s.
        """
        with ThreadPoolExecutor(1) as pool, self._explaining():
            connected = pool.submit(self._beside)
            for _ in range(2):
                self._producer.list_topics(self._topic or "__transaction_state", timeout=_left(until))
            cluster = str(self._producer.cluster_id(timeout=_left(until)))
            self._producer.init_transactions(_left(until))
            self._producer.begin_transaction()
            connected.result()
        return cluster

    def failed(self) -> Failure | None:
        """Begin another transaction: librdkafka refuses that with the reason, and sends nothing."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            return failure_of(error.args[0])
        return None

    def queue(self, records: Records, until: float) -> None:
        produce = self._producer.produce
        for row in self._rows(records):
            try:
                try:
                    produce(*row)
                except BufferError:
                    self._wait_for_room(row, until)
            except KafkaException as error:
                raise self._explained(error, row[0], sum(len(part or b"") for part in row[1:3])) from error

    def deliver(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while left := self._flush(min(_SLICE, _left(until))):
            self.failures.check(self.failed)
            if time.monotonic() >= until:
                raise self.failures.late(f"{left} rows did not reach the brokers", f"{seconds:.0f} s were left")
        self.failures.check(self.failed)

    def _flush(self, seconds: float) -> int:
        with self._explaining():
            return int(self._producer.flush(seconds))

    def hear(self, seconds: float) -> None:
        """Run the callbacks. confluent-kafka raises an error that ends the producer after them: note it as well."""
        try:
            self._producer.poll(seconds)
        except (KafkaException, SystemError) as error:
            self.failures.add(failure_of(_ending(error).args[0]))

    def close(self) -> None:
        """Send queued rows for half a second at most, then free the producer without ending its transaction.

        The rows are sent because librdkafka 2.16 aborts the process if a producer is destroyed while it is about to add
        their partitions to the transaction (`txn_req_cnt > 0`).
        """
        with suppress(Exception):  # nobody needs these rows any more
            self._flush(_SLICE)
        self._producer.purge(blocking=False)
        del self._producer  # this was its last reference, so it is destroyed, and does not end the transaction

    def _rows(self, records: Records) -> Iterable[tuple[Any, ...]]:
        """Return the arguments of each call; the shorter the call, the faster."""
        topics = repeat(self._topic) if records.topics is None else records.topics
        values, keys = records.values.to_pylist(), repeat(None) if records.keys is None else records.keys.to_pylist()
        if records.headers is None and records.timestamps is None:
            if records.partitions is None:
                return zip(topics, values, keys)  # noqa: B905 - repeat() has no end
            return zip(topics, values, keys, records.partitions.to_pylist())  # noqa: B905
        partitions = repeat(-1) if records.partitions is None else records.partitions.to_pylist()
        timestamps = repeat(0) if records.timestamps is None else records.timestamps.to_pylist()
        headers = repeat(None) if records.headers is None else records.headers
        none = repeat(None)
        return zip(topics, values, keys, partitions, none, none, timestamps, headers)  # noqa: B905

    def _wait_for_room(self, row: tuple[Any, ...], until: float) -> None:
        while True:
            self.hear(_ROOM)
            self.failures.check(self.failed)
            try:
                return self._producer.produce(*row)
            except BufferError:
                if time.monotonic() >= until:
                    raise self.failures.late("the brokers take no more rows", "the queue stayed full") from None

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (KafkaException, SystemError) as error:
            raise self._explained(_ending(error)) from error

    def _explained(self, error: KafkaException, topic: str | None = None, size: int = 0) -> Exception:
        return self.failures.cause(failure_of(error.args[0], topic, size), self.hear, self.failed)


def refused_settings(doing: str, why: str, values: Iterable[str] = ()) -> ConfigError:
    """Return the error for settings that librdkafka refuses, without their values, because one may be a secret."""
    for value in sorted(values, key=len, reverse=True):
        why = why.replace(f'"{value}"', '"..."') if value else why
    fix = "fix `producer` and the connection's options of the sink"
    return ConfigError(f"{doing}: librdkafka refuses the settings", why=why, next=fix)


def _left(until: float) -> float:
    """Return the seconds that are left, more than 0, because librdkafka waits permanently for a negative time."""
    return max(0.001, until - time.monotonic())


def _ending(error: KafkaException | SystemError) -> KafkaException:
    """Return the error that ends the producer.

    confluent-kafka raises it after the callback to which it reports it. Until then it calls further callbacks with the
    error pending, for which Python raises SystemError.
    """
    if isinstance(error, KafkaException):
        return error
    if isinstance(error.__cause__, KafkaException):
        return error.__cause__
    raise error


def failure_of(error: Any, topic: str | None = None, size: int = 0) -> Failure:
    """Return confluent-kafka's error as a failure, with its text."""
    if not isinstance(error, KafkaError):
        return Failure(-199, str(error), topic)
    return Failure(error.code(), f"{error.str()} ({error.name()})", topic, size)
