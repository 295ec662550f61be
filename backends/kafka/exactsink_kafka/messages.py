"""Brokers' answers as values, and the requests that need some care. Other modules write `messages.NAME`."""

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
"""Versions of EndTxn. Only the last raises the producer's epoch. The answer to a repeated end depends on the version of
the first. If versions are mixed, a stale commit can look like a success: so each cluster gets one of the two kinds."""

_READ_COMMITTED = 1
_EARLIEST, _LATEST = -2, -1
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")  # an ended transaction keeps its start time


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, as its brokers describe it. `end_txn`: the highest version of EndTxn that all brokers accept.
    `transaction_version`: the finalized feature, 0 if there is none."""

    id: str
    brokers: tuple[int, ...]
    end_txn: int
    transaction_version: int

    @property
    def joins(self) -> bool:
        """Return whether a write to a partition makes the partition part of the transaction."""
        return self.raises and self.transaction_version > 1

    @property
    def raises(self) -> bool:
        """Return whether the end of a transaction raises its producer's epoch, which fences a late task."""
        return self.end_txn >= _RAISES and self.transaction_version > 0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's own id (a UUID as text) and its partitions."""

    name: str
    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A transactional id, as its coordinator describes it. `state` is Kafka's: Ongoing, PrepareCommit, CompleteAbort,
    Empty... `started`: Unix seconds by the broker's clock, None if nothing is open. `partitions` hold its rows;
    `offsets` is the partition of __consumer_offsets that holds its groups' offsets."""

    transaction: Transaction
    state: str
    timeout_seconds: float
    started: float | None
    partitions: tuple[tuple[str, int], ...]
    offsets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Offset:
    """A consumer group's offset of a partition, and its metadata text."""

    group: str
    topic: str
    partition: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with an open transaction in a partition, and the offset of its first row there.

    `last_sequence`: the number of its last row there, counted from 0 under this epoch (modulo 2^31).
    """

    id: int
    epoch: int
    first_offset: int
    last_sequence: int = -1
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch of a partition: its offsets, its producer's id and epoch, and its count of rows.

    `ends`: the batch is the marker that ends a transaction of its producer, and has no rows.
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
    """A partition at an offset, as its leader shows it to a read_committed consumer.

    `error`: the broker's code (0: none; 100 UNKNOWN_TOPIC_ID; 1 OFFSET_OUT_OF_RANGE). `log_start` and `stable` (the
    last stable offset) bound the settled offsets; -1 if the broker knows no such topic. `producer`: (id, epoch) of the
    transactional batch that holds the offset; None if there is no such batch, or it is not settled. `aborted`:
    (producer id, first offset) of aborted transactions that end at the offset or later, and may begin later. `batch`:
    the batch that holds the offset, or the next batch that exists.
    """

    error: int
    log_start: int
    stable: int
    producer: tuple[int, int] | None
    aborted: frozenset[tuple[int, int]]
    batch: LoggedBatch | None = None


def cluster_of(id: str, brokers: tuple[int, ...], versions: Iterable[Any]) -> Cluster:
    """Read all brokers' ApiVersions answers: a cluster can do no more than its oldest broker."""
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
    """Read the producers with an open transaction from a partition's part of a DescribeProducers answer."""
    return tuple(
        OpenProducer(p.producer_id, p.producer_epoch, p.current_txn_start_offset, p.last_sequence, p.coordinator_epoch)
        for p in partition.active_producers
        if p.current_txn_start_offset >= 0
    )


def marker_request(ended: Transaction, topic: str, partition: int, coordinator_epoch: int, *, commit: bool) -> Any:
    """Return the request that writes a transaction's end into a partition, as its coordinator does."""
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
    """Return the request for transactions in some states. A broker older than 4.1 ignores the prefix, and lists all."""
    pattern = re.escape(prefix) + ".*"
    return ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=[], transactional_id_pattern=pattern, max_version=2
    )


def take_request(id: str, timeout_seconds: float) -> Any:
    """Return the request that takes a transactional id. It fences the last user, and aborts that user's transaction."""
    timeout = round(timeout_seconds * 1000)
    return InitProducerIdRequest(transactional_id=id, transaction_timeout_ms=timeout, min_version=3, max_version=4)


def fence_request(one: Transaction, timeout_seconds: float) -> Any:
    """Return the request that raises a producer's epoch, if nobody has taken its id since."""
    request = take_request(one.id, timeout_seconds)
    request.producer_id, request.producer_epoch = one.producer_id, one.producer_epoch
    return request


def join_request(one: Transaction, group: str) -> Any:
    """Return the request that adds a group's offsets to a transaction, and begins one if none is open."""
    return AddOffsetsToTxnRequest(**use_of(one), group_id=group)


def partitions_request(one: Transaction, topic: str, partitions: Iterable[int]) -> Any:
    """Return the request that adds partitions to a transaction. From transaction.version 2 on, each write does that."""
    use = {f"v3_and_below_{name}": value for name, value in use_of(one).items()}
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
    return AddPartitionsToTxnRequest(**use, v3_and_below_topics=topics, min_version=3, max_version=3)


def produce_request(
    one: Transaction, topic: str, batches: Sequence[tuple[int, Sequence[Any]]], seconds: float, *, joins: bool
) -> Any:
    """Return the request that writes record batches, one per partition, each in pieces of memory."""
    version = {"min_version": 12 if joins else 9, "max_version": 11 + joins}
    empty = ProduceRequest(transactional_id=one.id, acks=-1, timeout_ms=round(seconds * 1000), topic_data=[], **version)
    return _Produce(empty, topic, batches)


class _Produce:
    """A Produce request that copies its batches only once, when it is encoded. An empty request does all the rest."""

    def __init__(self, empty: Any, topic: str, batches: Sequence[tuple[int, Sequence[Any]]]) -> None:
        self._empty, self._topic, self._batches = empty, topic.encode(), batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._empty, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the version, which a connection chooses, in the empty request."""
        setattr(self._empty, name, value) if name == "API_VERSION" else super().__setattr__(name, value)

    def encode(self, **_: bool) -> bytes:
        """Encode the request, with its length and header."""
        head = self._empty.encode(header=True)[:-2]  # without an empty list of topics, and the tags behind it
        pieces = [head, uvarint(2), uvarint(len(self._topic) + 1), self._topic, uvarint(len(self._batches) + 1)]
        for partition, records in self._batches:
            pieces += [struct.pack(">i", partition), uvarint(sum(map(len, records)) + 1), *records, b"\0"]
        return b"".join([struct.pack(">i", sum(map(len, pieces)) + 2), *pieces, b"\0\0"])


def offset_request(one: Transaction, offset: Offset, joins: bool) -> Any:
    """Return the request that writes a group's offset in a transaction, without a member. `joins`: see `Cluster`."""
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    wanted = topic.TxnOffsetCommitRequestPartition(
        partition_index=offset.partition, committed_offset=offset.offset, committed_metadata=offset.text
    )
    topics = [topic(name=offset.topic, partitions=[wanted])]
    version = {"min_version": 3, "max_version": 4 + joins}
    return TxnOffsetCommitRequest(**use_of(one), group_id=offset.group, topics=topics, **version)


def read_request(group: str, topic: str | None) -> Any:
    """Return the request for a group's offset of a topic's partition 0, or for all its offsets (None). It does not
    wait for open transactions."""
    entry = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = None if topic is None else [entry.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    version = {"min_version": 8, "max_version": 9}
    return OffsetFetchRequest(groups=[entry(group_id=group, topics=topics)], require_stable=False, **version)


def end_request(one: Transaction, commit: bool, raises: bool) -> Any:
    """Return the request that ends a transaction. `raises`: see `Cluster`."""
    least, most = (_RAISES, _RAISES) if raises else KEEPS
    return EndTxnRequest(**use_of(one), committed=commit, min_version=least, max_version=most)


def taken(answer: Any) -> int:
    """Return the error code in an answer to `offset_request`."""
    return int(answer.topics[0].partitions[0].error_code)


def joined(answer: Any) -> int:
    """Return the first error code in an answer to `partitions_request`, 0 if there is none."""
    topics = answer.results_by_topic_v3_and_below
    codes = (p.partition_error_code for topic in topics for p in topic.results_by_partition)
    return int(next(filter(None, codes), 0))


def read(answer: Any) -> int:
    """Return the first error code in an answer to `read_request`, 0 if there is none."""
    codes = [answer.groups[0].error_code, *(p.error_code for t in answer.groups[0].topics for p in t.partitions)]
    return int(next(filter(None, codes), 0))


def producers_request(partitions: Iterable[tuple[str, int]]) -> Any:
    """Return the request for the producers that write to partitions."""
    of_topic = defaultdict(list)
    for topic, partition in partitions:
        of_topic[topic].append(partition)
    entry = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[entry(name=name, partition_indexes=of) for name, of in of_topic.items()])


def use_of(one: Transaction) -> dict[str, Any]:
    """Return the fields by which a request names one use of a transactional id."""
    return {"transactional_id": one.id, "producer_id": one.producer_id, "producer_epoch": one.producer_epoch}


def versions_request() -> Any:
    """Return the request for a broker's API versions. It names this client, or the broker answers with an error."""
    return ApiVersionsRequest(client_software_name="exactsink", client_software_version="1")


def metadata_request(*, names: Iterable[str] = (), ids: Iterable[str] = ()) -> Any:
    """Return the request for topics, by name or by the topics' own ids. It creates no topic."""
    entry = MetadataRequest.MetadataRequestTopic
    topics = [entry(name=name) for name in names] + [entry(name=None, topic_id=uuid.UUID(one)) for one in ids]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=12)


def leaders(metadata: Any) -> dict[tuple[str, int], int]:
    """Read partitions' leaders from a Metadata answer, without the partitions that have none."""
    known = {(topic.name, p.partition_index): p.leader_id for topic in metadata.topics for p in topic.partitions}
    return {place: leader for place, leader in known.items() if leader >= 0}


def fetch_request(topic_id: str, partition: int, offset: int) -> Any:
    """Return the request for the batch at an offset. It is read_committed, so its answer lists aborted transactions."""
    topic = FetchRequest.FetchTopic
    wanted = topic.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1)  # a whole batch
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
    """Return the two requests for a partition's first offset and its last stable offset."""
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
    """Make the result for an offset outside the partition, from the answers to `bounds_requests`."""
    log_start, stable = (answer.topics[0].partitions[0].offset for answer in answers)
    return Seen(error, log_start, stable, None, frozenset())


def _batch_at(records: Any, offset: int) -> Any:
    """Return the batch that holds the offset, or the next batch; None if the answer has neither."""
    batches = MemoryRecords(records) if records else ()
    return next((batch for batch in batches if batch.magic >= 2 and offset <= batch.last_offset), None)


def _logged(batch: Any) -> LoggedBatch | None:
    if batch is None:
        return None
    ends, producer = bool(batch.is_control_batch), (batch.producer_id, batch.producer_epoch)
    return LoggedBatch(batch.base_offset, batch.last_offset, producer, 0 if ends else batch.records_count, ends)
