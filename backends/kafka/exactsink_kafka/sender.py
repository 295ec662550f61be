"""Sends a transaction's record batches to the partitions' leaders until each one is acknowledged.

A batch is kept until its leader has acknowledged it. If an answer is in doubt, the batch is sent again with the same
sequence number. Brokers recognize it, because they know the last five batches of a producer in each partition, and no
more than five are in flight. If the doubt stays, the attempt fails. Its transaction then gets no vote, so none of its
rows is ever visible.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from confluent_kafka import KafkaError as Code
from kafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, KafkaError

from exactsink.contract import ExactsinkError, Fatal
from exactsink.toolkit.waiting import attempts_within
from exactsink_kafka.channel import Sent, Unanswered
from exactsink_kafka.errors import AGAIN, LEADER_NOT_AVAILABLE, OUT_OF_ORDER, TAKEN, Failures, explained, is_refusal
from exactsink_kafka.messages import produce_request
from exactsink_kafka.producer import failure_of
from exactsink_kafka.transactions import Transaction
from exactsink_kafka.wire import Wire

__all__ = ["Batch", "Sender"]

_MOST_IN_FLIGHT = 5
_MOST_BYTES = 16 << 20
_MOST_SECONDS = 30.0
"""How long one request may wait for its answer, before it counts as lost."""
_FIRST, _LONGEST = 0.01, 0.5  # seconds between tries
_LOST = -195  # librdkafka's code for a connection that broke


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A record batch: its partition, its count of rows, the size of its largest row, and its memory and size."""

    partition: int
    rows: int
    largest: int
    pieces: Sequence[bytes | memoryview]
    size: int


class Sender:
    """Sends the batches of one transaction to one topic. For one thread. `joins`: see `Cluster`."""

    def __init__(self, wire: Wire, topic: str, one: Transaction, failures: Failures, *, joins: bool) -> None:
        self._wire = wire
        self._topic = topic
        self._transaction = one
        self._failures = failures
        self._joins = joins
        self._joined: set[int] = set()
        self._out: dict[int, deque[tuple[Sent, list[Batch]]]] = defaultdict(deque)
        """By leader: requests that it has not answered yet."""
        self._kept: dict[int, deque[Batch]] = defaultdict(deque)
        """By partition: batches that are not acknowledged, in the order of sequence numbers."""
        self._begun: set[int] = set()
        """Partitions with an acknowledged batch."""
        self._bytes = 0
        self._doubt = False
        self._until = 0.0  # monotonic

    def send(self, batches: Iterable[Batch], until: float) -> None:
        """Send batches, in order within a partition; wait for room until a moment (monotonic seconds)."""
        self._until = until
        for wave in _waves(batches):
            for leader, some in self._by_leader(wave).items():
                self._make_room(leader, some)
                for batch in some:
                    self._kept[batch.partition].append(batch)
                    self._bytes += batch.size
                self._post(leader, some)
                self._settle_doubt()

    def flush(self, until: float) -> None:
        """Wait until every batch is acknowledged. Raises if one is not at that moment (monotonic seconds)."""
        self._until = until
        self._drain()
        self._settle_doubt()

    def _make_room(self, leader: int, batches: list[Batch]) -> None:
        """Wait until another request may be sent. The first batch of a partition is sent alone.

        A leader accepts any sequence number from a producer that it does not know: it could refuse the first batch,
        because it does not lead yet, and then accept the second.
        """
        size = sum(batch.size for batch in batches)
        new = [batch.partition for batch in batches if batch.partition not in self._begun]
        out = self._out[leader]
        while out and (out[0][0].done() or len(out) >= _MOST_IN_FLIGHT or any(self._kept[number] for number in new)):
            self._take(leader)
        while self._bytes and self._bytes + size > _MOST_BYTES and any(self._out.values()):
            self._take(max(self._out, key=lambda one: len(self._out[one])))
        self._settle_doubt()

    def _by_leader(self, batches: Iterable[Batch]) -> Mapping[int, list[Batch]]:
        """Group batches by their leaders as last reported, -1 if none is known."""
        grouped = defaultdict(list)
        for batch in batches:
            grouped[self._wire.asker.leaders.get((self._topic, batch.partition), -1)].append(batch)
        return grouped

    def _post(self, leader: int, batches: list[Batch]) -> None:
        """Send one request. If there is no leader, its batches are in doubt."""
        if leader < 0:
            return self._doubted(failure_of(Code(LEADER_NOT_AVAILABLE), self._topic))
        self._join({batch.partition for batch in batches} - self._joined)
        pieces = [(batch.partition, batch.pieces) for batch in batches]
        request = produce_request(self._transaction, self._topic, pieces, _MOST_SECONDS, joins=self._joins)
        self._out[leader].append((self._wire.asker.post(request, leader, _MOST_SECONDS), batches))
        return None

    def _join(self, partitions: set[int]) -> None:
        if partitions and not self._joins:
            with self._failures.explaining():
                code = self._wire.join_partitions(self._transaction, self._topic, sorted(partitions), self._left())
            if code:
                self._fail(code)
        self._joined |= partitions

    def _take(self, leader: int) -> None:
        """Wait for a leader's oldest answer, and apply its code to each batch."""
        sent, batches = self._out[leader].popleft()
        try:
            answer = sent.answer(self._left())
            codes = {one.index: one.error_code for topic in answer.responses for one in topic.partition_responses}
            if missing := {batch.partition for batch in batches} - codes.keys():
                raise KafkaConnectionError(f"an answer lacks partitions {missing}")
        except Unanswered:
            raise self._late(0) from None
        except (KafkaError, OSError) as error:
            if is_refusal(error) or isinstance(error, IncompatibleBrokerVersion):
                raise explained(self._failures.doing, error, self._wire.asker.options) from error
            return self._doubted(failure_of(Code(_LOST, f"{type(error).__name__}: {error}"), self._topic))
        for batch in batches:
            self._judge(batch, codes[batch.partition])
        return None

    def _judge(self, batch: Batch, code: int) -> None:
        kept = self._kept[batch.partition]
        if code in TAKEN:
            kept.remove(batch)
            self._begun.add(batch.partition)
            self._bytes -= batch.size
        elif code in AGAIN or (code == OUT_OF_ORDER and kept[0] is not batch):
            self._doubted(failure_of(Code(code), self._topic))  # out of order: a batch before it has failed
        else:
            self._fail(code, batch)

    def _doubted(self, failure: Any) -> None:
        self._doubt = True
        self._failures.note(failure)

    def _fail(self, code: int, batch: Batch | None = None) -> None:
        failure = failure_of(Code(code), self._topic, batch.largest if batch else 0)
        for _ in range(batch.rows if batch else 1):
            self._failures.add(failure)
        self._failures.check(lambda: None)

    def _settle_doubt(self) -> None:
        """While batches are in doubt, query the leaders and send all kept batches again. Raises if time runs out."""
        if not self._doubt:
            return
        self._drain()
        self._doubt = False
        left = self._left()
        for _ in attempts_within(left, first_seconds=_FIRST, longest_seconds=_LONGEST):
            if self._located():
                for wave in zip_longest(*self._kept.values()):
                    for leader, some in self._by_leader(filter(None, wave)).items():
                        self._post(leader, some)
                self._drain()
                self._doubt = False
            if not any(self._kept.values()):
                return
        raise self._late(left)

    def _late(self, seconds: float) -> ExactsinkError:
        rows = sum(batch.rows for kept in self._kept.values() for batch in kept)
        return self._failures.late(f"{rows} rows did not reach the brokers", f"{seconds:.0f} s were left")

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _drain(self) -> None:
        for leader in list(self._out):
            while self._out[leader]:
                self._take(leader)

    def _located(self) -> bool:
        """Query the leaders of the partitions; return False if no broker answers now."""
        try:
            self._wire.asker.locate(self._topic, max(0.1, self._left()))
        except Fatal:
            raise
        except ExactsinkError as error:
            self._failures.note(failure_of(Code(_LOST, error.why or error.what), self._topic))
            return False
        return True


def _waves(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Yield groups of batches for one request each: a group has at most one batch per partition."""
    queues: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        queues[batch.partition].append(batch)
    for wave in zip_longest(*queues.values()):
        yield [batch for batch in wave if batch is not None]
