"""The plain writer: a call of confluent-kafka's per row. It takes every column a record can have."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from exactsink.contract import ConfigError
from exactsink_kafka.producers.base import RowProducer
from exactsink_kafka.producers.columns import Records
from exactsink_kafka.producers.failures import UNDECIDED, Failure, Failures

__all__ = ["PlainProducer"]

_SLICE = 0.5  # seconds: how long a call may keep the thread from hearing that its task is killed
_ROOM = 0.02


class PlainProducer(RowProducer):
    """A `confluent_kafka.Producer`. Its callbacks know the failures only, so dropping it frees it at once."""

    def __init__(self, settings: Mapping[str, str], topic: str | None, doing: str) -> None:
        self._topic = topic
        self._doing = doing
        self._failures = failures = Failures(doing)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.add(_failure(error, message.topic()))

        def heard(error: KafkaError) -> None:
            (failures.add if error.fatal() else failures.hear)(_failure(error))

        own = {"delivery.report.only.error": True, "on_delivery": delivered, "error_cb": heard}  # a bool: not the text
        try:
            self._producer: Producer | None = Producer({**settings, **own})
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigError(
                f"{doing}: librdkafka refuses the settings",
                why=_failure(error.args[0]).text if isinstance(error, KafkaException) else str(error),
                next="fix `producer` and the connection's options of the sink",
            ) from error

    def open(self, seconds: float) -> str:
        """See base. Two questions first: a connection made for the first is not the one that lasts, and a
        coordinator asked for in between is asked again only after half a second."""
        producer, until = self._live(), time.monotonic() + seconds
        try:
            for _ in range(2):
                producer.list_topics(self._topic or "__transaction_state", timeout=_left(until))
            cluster: str = producer.cluster_id(timeout=_left(until))
            producer.init_transactions(_left(until))
        except KafkaException as error:
            raise self._explained(error) from error
        return cluster

    def begin(self) -> None:
        try:
            self._live().begin_transaction()
        except KafkaException as error:
            raise self._explained(error) from error

    def take(self, batch: pa.RecordBatch, seconds: float) -> None:
        self._failures.check(self._reported)
        producer, until = self._live(), time.monotonic() + seconds
        produce = producer.produce
        for row in self._rows(Records(batch, self._topic, self._doing)):
            try:
                produce(*row)
            except BufferError:
                self._wait_for_room(row, until)
            except KafkaException as error:
                raise self._explained(error, row[0]) from error
        self._hear(0)
        self._failures.check(self._reported)

    def flush(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while left := self._undelivered(min(_SLICE, _left(until))):
            self._failures.check(self._reported)
            if time.monotonic() >= until:
                raise self._failures.late(f"{left} rows did not reach the brokers", f"{seconds:.0f} s were left")
        self._failures.check(self._reported)

    def drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(blocking=False)
        # What destroys it, without an end of the transaction, is that this was its last reference.

    def _rows(self, records: Records) -> Iterable[tuple[Any, ...]]:
        """Return the arguments of each call; the shorter the call, the faster."""
        topics = repeat(self._topic) if records.topics is None else records.topics
        values, keys = records.values.to_pylist(), records.keys_or_none()
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
        producer = self._live()
        while True:
            self._hear(_ROOM)
            self._failures.check(self._reported)
            try:
                return producer.produce(*row)
            except BufferError:
                if time.monotonic() >= until:
                    raise self._failures.late("the brokers take no more rows", "the queue stayed full") from None
            except KafkaException as error:
                raise self._explained(error, row[0]) from error

    def _undelivered(self, seconds: float) -> int:
        try:
            return int(self._live().flush(seconds))
        except (KafkaException, SystemError) as error:
            raise self._explained(_ending(error)) from error

    def _hear(self, seconds: float) -> None:
        """Let the callbacks be called. An error that ends the producer is raised as well, after them."""
        try:
            self._live().poll(seconds)
        except (KafkaException, SystemError) as error:
            self._failures.add(_failure(_ending(error).args[0]))

    def _reported(self) -> Failure | None:
        """Ask what the transaction failed of: beginning another is refused with that, here, without a request."""
        try:
            self._live().begin_transaction()
        except KafkaException as error:
            return _failure(error.args[0])
        return None

    def _explained(self, error: KafkaException, topic: str | None = None) -> Exception:
        return self._failures.cause(_failure(error.args[0], topic), self._hear, self._reported)

    def _live(self) -> Producer:
        if self._producer is None:
            raise ValueError(f"{self._doing}: this writer was let go; {UNDECIDED}")
        return self._producer


def _left(until: float) -> float:
    """Return what is left of the time: librdkafka takes a negative one for ever."""
    return max(0.001, until - time.monotonic())


def _ending(error: KafkaException | SystemError) -> KafkaException:
    """Return the error that ends the producer. confluent-kafka raises it after the callback that it reported it to, and
    calls further callbacks with it pending, which Python answers with a SystemError."""
    if isinstance(error, KafkaException):
        return error
    if isinstance(error.__cause__, KafkaException):
        return error.__cause__
    raise error


def _failure(error: Any, topic: str | None = None) -> Failure:
    if not isinstance(error, KafkaError):
        return Failure(-199, str(error), topic)
    return Failure(error.code(), f"{error.str()} ({error.name()})", topic)
