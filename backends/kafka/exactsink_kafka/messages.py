"""What brokers answer, as values, and the requests whose form takes some care, which are used by this module's name."""

from __future__ import annotations

import re
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin.transactions import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kafka.record import MemoryRecords

from exactsink_kafka.errors import OFFSETS
from exactsink_kafka.records import uvarint
from exactsink_kafka.transactions import Transaction

__all__ = ["KEEPS", "Cluster", "Described", "LoggedBatch", "Offset", "OpenProducer", "Seen", "Topic"]

KEEPS, _RAISES = (3, 4), 5
"""Versions of EndTxn: the last raises the producer's epoch. The answers to a repeat depend on the version of the first
end, and a stale commit can look like a success when versions are mixed: each cluster has one of the two ways."""

_READ_COMMITTED = 1
_EARLIEST, _LATEST = -2, -1
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")  # an ended one keeps its time


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster says of itself. `end_txn` is the highest version of EndTxn that all its brokers take;
    `transaction_version` the finalized feature, 0 where there is none."""

    id: str
    brokers: tuple[int, ...]
    end_txn: int
    transaction_version: int

    @property
    def joins(self) -> bool:
        """Whether what is written to a partition makes it part of the transaction."""
        return self.raises and self.transaction_version > 1

    @property
    def raises(self) -> bool:
        """Whether the end of a transaction raises its producer's epoch, so that a late task is fenced by it."""
        return self.end_txn >= _RAISES and self.transaction_version > 0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's own id (a UUID as text) and its partitions."""

    name: str
    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A transactional id as its coordinator knows it. `state` is the broker's word: Ongoing, PrepareCommit,
    CompleteAbort, Empty... `started` in Unix seconds of the broker's clock, None when nothing is open. `partitions` are
    those that its rows are in, `offsets` the one of Kafka's own topic that its groups' offsets are in."""

    transaction: Transaction
    state: str
    timeout_seconds: float
    started: float | None
    partitions: tuple[tuple[str, int], ...]
    offsets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Offset:
    """A consumer group's offset of a partition, and the text that stands beside it."""

    group: str
    topic: str
    partition: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with an open transaction in a partition, and where its rows begin there.

    `last_sequence` numbers its rows in that partition from 0, under this epoch (modulo 2^31).
    """

    id: int
    epoch: int
    first_offset: int
    last_sequence: int = -1
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch of a partition: its offsets, its producer's id and epoch, how many rows it has.

    `ends`: it is the end of a transaction of that producer's, and has no rows.
    """

    first: int
    last: int
    producer: tuple[int, int]
    rows: int
    ends: bool

    def rows_from(self, offset: int) -> int:
        """Count its rows from an offset on: deletion may begin within a batch."""
        return max(0, self.rows - max(0, offset - self.first))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a partition's leader shows at an offset to a reader with isolation.level=read_committed.

    `error` is the broker's code (0: none; 100 UNKNOWN_TOPIC_ID; 1 OFFSET_OUT_OF_RANGE). `log_start` and `stable` (the
    last stable offset) bound what is settled; -1 where the broker knows no such topic. `producer` is (id, epoch) of
    the transactional batch that holds the offset, None when none does or it is not settled. `aborted` are (producer
    id, first offset) of aborted transactions that end at the offset or later; some may begin later, too. `batch` is the
    one that holds the offset, or the next one that stands.
    """

    error: int
    log_start: int
    stable: int
    producer: tuple[int, int] | None
    aborted: frozenset[tuple[int, int]]
    batch: LoggedBatch | None = None


def cluster_of(id: str, brokers: tuple[int, ...], versions: Iterable[Any]) -> Cluster:
    """Read all brokers' ApiVersions answers: what a cluster takes is what its oldest broker does."""
    answers, wanted = list(versions), EndTxnRequest.API_KEY
    end_txn = [max((a.max_version for a in one.api_keys if a.api_key == wanted), default=0) for one in answers]
    levels = [{f.name: f.max_version_level for f in one.finalized_features or ()} for one in answers]
    transaction = min((features.get("transaction.version", 0) for features in levels), default=0)
    return Cluster(id, brokers, min(end_txn, default=0), transaction)


def described(state: Any) -> Described:
    """Read one entry of a DescribeTransactions answer."""
    transaction = Transaction(state.transactional_id, state.producer_id, state.producer_epoch)
    partitions = sorted((topic.topic, partition) for topic in state.topics for partition in topic.partitions)
    opened = state.transaction_state in OPEN and state.transaction_start_time_ms >= 0
    return Described(
        transaction,
        state.transaction_state,
        state.transaction_timeout_ms / 1000,
        state.transaction_start_time_ms / 1000 if opened else None,
        tuple(one for one in partitions if one[0] != OFFSETS),
        tuple(one for one in partitions if one[0] == OFFSETS),
    )


def open_producers(partition: Any) -> tuple[OpenProducer, ...]:
    """Read a partition's part of a DescribeProducers answer: those with an open transaction."""
    return tuple(
        OpenProducer(p.producer_id, p.producer_epoch, p.current_txn_start_offset, p.last_sequence, p.coordinator_epoch)
        for p in partition.active_producers
        if p.current_txn_start_offset >= 0
    )


def marker_request(ended: Transaction, topic: str, partition: int, coordinator_epoch: int, *, commit: bool) -> Any:
    """Write a transaction's end into a partition, as its coordinator does."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    written = marker(
        producer_id=ended.producer_id,
        producer_epoch=ended.producer_epoch,
        transaction_result=commit,
        topics=[marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(coordinator_epoch, 0),
    )
    return WriteTxnMarkersRequest(markers=[written], max_version=1)


def listing_request(states: Iterable[str], prefix: str) -> Any:
    """Ask a broker for the transactions in some states; one older than 4.1 does not know the prefix, and lists all."""
    pattern = re.escape(prefix) + ".*"
    return ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=[], transactional_id_pattern=pattern, max_version=2
    )


def take_request(id: str, timeout_seconds: float) -> Any:
    """Take a transactional id: its last user is fenced, and what that one left open is aborted."""
    timeout = round(timeout_seconds * 1000)
    return InitProducerIdRequest(transactional_id=id, transaction_timeout_ms=timeout, min_version=3, max_version=4)


def fence_request(one: Transaction, timeout_seconds: float) -> Any:
    """Raise the epoch of a producer whose id nobody has taken since."""
    request = take_request(one.id, timeout_seconds)
    request.producer_id, request.producer_epoch = one.producer_id, one.producer_epoch
    return request


def join_request(one: Transaction, group: str) -> Any:
    """Make a group's offsets part of an open transaction, which is begun by it if there is none."""
    return AddOffsetsToTxnRequest(**use_of(one), group_id=group)


def partitions_request(one: Transaction, topic: str, partitions: Iterable[int]) -> Any:
    """Make partitions part of a transaction, where what is written to them does not: before transaction.version 2."""
    use = {f"v3_and_below_{name}": value for name, value in use_of(one).items()}
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
    return AddPartitionsToTxnRequest(**use, v3_and_below_topics=topics, min_version=3, max_version=3)


def produce_request(
    one: Transaction, topic: str, batches: Sequence[tuple[int, Sequence[Any]]], seconds: float, *, joins: bool
) -> Any:
    """Write record batches, one a partition, each as pieces of memory."""
    version = {"min_version": 12 if joins else 9, "max_version": 11 + joins}
    empty = ProduceRequest(transactional_id=one.id, acks=-1, timeout_ms=round(seconds * 1000), topic_data=[], **version)
    return _Produce(empty, topic, batches)


class _Produce:
    """An empty request that gets its batches when it is sent, in one copy; all else is the request's own."""

    def __init__(self, empty: Any, topic: str, batches: Sequence[tuple[int, Sequence[Any]]]) -> None:
        self._empty, self._topic, self._batches = empty, topic.encode(), batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._empty, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the version, which a connection chooses, where it belongs."""
        setattr(self._empty, name, value) if name == "API_VERSION" else super().__setattr__(name, value)

    def encode(self, **_: bool) -> bytes:
        """Encode it, with its length and header."""
        head = self._empty.encode(header=True)[:-2]  # without an empty list of topics, and the tags behind it
        pieces = [head, uvarint(2), uvarint(len(self._topic) + 1), self._topic, uvarint(len(self._batches) + 1)]
        for partition, records in self._batches:
            pieces += [struct.pack(">i", partition), uvarint(sum(map(len, records)) + 1), *records, b"\0"]
        return b"".join([struct.pack(">i", sum(map(len, pieces)) + 2), *pieces, b"\0\0"])


def offset_request(one: Transaction, offset: Offset, joins: bool) -> Any:
    """Write a group's offset in a transaction, as no member of the group; see `Wire.write_offset` for `joins`."""
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    wanted = topic.TxnOffsetCommitRequestPartition(
        partition_index=offset.partition, committed_offset=offset.offset, committed_metadata=offset.text
    )
    topics = [topic(name=offset.topic, partitions=[wanted])]
    version = {"min_version": 3, "max_version": 4 + joins}
    return TxnOffsetCommitRequest(**use_of(one), group_id=offset.group, topics=topics, **version)


def read_request(group: str, topic: str | None) -> Any:
    """Ask for a group's offset of a topic's partition 0, or for all (None): those of open transactions are not
    waited for."""
    entry = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = None if topic is None else [entry.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    version = {"min_version": 8, "max_version": 9}
    return OffsetFetchRequest(groups=[entry(group_id=group, topics=topics)], require_stable=False, **version)


def end_request(one: Transaction, commit: bool, raises: bool) -> Any:
    """End a transaction; see `Cluster.raises`."""
    least, most = (_RAISES, _RAISES) if raises else KEEPS
    return EndTxnRequest(**use_of(one), committed=commit, min_version=least, max_version=most)


def taken(answer: Any) -> int:
    """Return the error code of a written offset."""
    return int(answer.topics[0].partitions[0].error_code)


def joined(answer: Any) -> int:
    """Return the first error code of partitions that were to join a transaction."""
    topics = answer.results_by_topic_v3_and_below
    codes = (p.partition_error_code for topic in topics for p in topic.results_by_partition)
    return int(next(filter(None, codes), 0))


def read(answer: Any) -> int:
    """Return the first error code of offsets that were read."""
    codes = [answer.groups[0].error_code, *(p.error_code for t in answer.groups[0].topics for p in t.partitions)]
    return int(next(filter(None, codes), 0))


def producers_request(partitions: Iterable[tuple[str, int]]) -> Any:
    """Ask who writes into partitions."""
    of_topic = defaultdict(list)
    for topic, partition in partitions:
        of_topic[topic].append(partition)
    entry = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[entry(name=name, partition_indexes=of) for name, of in of_topic.items()])


def use_of(one: Transaction) -> dict[str, Any]:
    """Name a use of a transactional id, as requests of it do."""
    return {"transactional_id": one.id, "producer_id": one.producer_id, "producer_epoch": one.producer_epoch}


def versions_request() -> Any:
    """Ask what a broker takes; one that does not know who asks answers with an error."""
    return ApiVersionsRequest(client_software_name="exactsink", client_software_version="1")


def metadata_request(*, names: Iterable[str] = (), ids: Iterable[str] = ()) -> Any:
    """Ask for topics by name or by their own ids; none is made by asking."""
    entry = MetadataRequest.MetadataRequestTopic
    topics = [entry(name=name) for name in names] + [entry(name=None, topic_id=uuid.UUID(one)) for one in ids]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=12)


def leaders(metadata: Any) -> dict[tuple[str, int], int]:
    """Read who leads the partitions of a Metadata answer, those that nobody does left out."""
    known = {(topic.name, p.partition_index): p.leader_id for topic in metadata.topics for p in topic.partitions}
    return {place: leader for place, leader in known.items() if leader >= 0}


def fetch_request(topic_id: str, partition: int, offset: int) -> Any:
    """Ask for the batch at an offset as a read_committed reader, who learns which transactions were aborted."""
    topic = FetchRequest.FetchTopic
    wanted = topic.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1)  # a batch at least
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=_READ_COMMITTED,
        topics=[topic(topic_id=uuid.UUID(topic_id), partitions=[wanted])],
        forgotten_topics_data=[],
        min_version=13,
    )


def seen(answer: Any, offset: int) -> Seen:
    """Read the partition's part of a Fetch answer."""
    aborted = frozenset((one.producer_id, one.first_offset) for one in answer.aborted_transactions or ())
    batch = _batch_at(answer.records, offset)
    rows = batch is not None and batch.is_transactional and not batch.is_control_batch
    producer = (batch.producer_id, batch.producer_epoch) if rows and batch.base_offset <= offset else None
    return Seen(0, answer.log_start_offset, answer.last_stable_offset, producer, aborted, _logged(batch))


def bounds_requests(topic: str, partition: int) -> list[Any]:
    """Ask where a partition begins, and where its last stable offset is: two requests."""
    entry, part = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    return [
        ListOffsetsRequest(
            replica_id=-1,
            isolation_level=_READ_COMMITTED,
            topics=[entry(name=topic, partitions=[part(partition_index=partition, timestamp=at)])],
        )
        for at in (_EARLIEST, _LATEST)
    ]


def seen_beyond(error: int, answers: Iterable[Any]) -> Seen:
    """Make the answer for an offset that the partition doesn't have, from those to `bounds_requests`."""
    log_start, stable = (answer.topics[0].partitions[0].offset for answer in answers)
    return Seen(error, log_start, stable, None, frozenset())


def _batch_at(records: Any, offset: int) -> Any:
    """Return the batch that holds the offset, or the next one; None when there is none in the answer."""
    batches = MemoryRecords(records) if records else ()
    return next((batch for batch in batches if batch.magic >= 2 and offset <= batch.last_offset), None)


def _logged(batch: Any) -> LoggedBatch | None:
    if batch is None:
        return None
    ends, producer = bool(batch.is_control_batch), (batch.producer_id, batch.producer_epoch)
    return LoggedBatch(batch.base_offset, batch.last_offset, producer, 0 if ends else batch.records_count, ends)
