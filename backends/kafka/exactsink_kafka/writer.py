"""A task attempt's writer: it chooses a client, writes in one transaction, and leaves it open for the driver to end."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from exactsink.contract import Committable, Fatal, Mark, Retryable, Txn, Writer
from exactsink_kafka.channel import Question
from exactsink_kafka.columns_client import ColumnsClient, Settings
from exactsink_kafka.errors import ENDED, ENDED_NEXT, NOT_MINE, UNDECIDED, Failures, named, refused
from exactsink_kafka.group import group_of, mark_offset
from exactsink_kafka.messages import Described, OpenProducer, Topic
from exactsink_kafka.options import KafkaOptions, producer_settings, slow_because
from exactsink_kafka.producer import Client, PlainClient, RowProducer
from exactsink_kafka.records import Header
from exactsink_kafka.transactions import PAYLOAD_VERSION, Ticket, Voted, Written
from exactsink_kafka.wire import Place, Wire

__all__ = ["KafkaWriter", "row_producer"]

_LOG = logging.getLogger(__name__)
_OPENING_SECONDS = 60.0
_SEQUENCES = 2**31  # brokers number rows modulo this


class KafkaWriter(Writer):
    """Write a task attempt's rows in a transaction under an id of the pool.

    The writer never ends the transaction: its vote names it, and the driver ends it, by the decision or in a sweep. The
    writer checks twice that it still owns the transaction: when it has taken the id, and when the brokers have the last
    row. The coordinator only raises an id's epoch, and adds no partition to a transaction of an older epoch. So rows
    that brokers accept after the first check prove that it named this attempt. The second check proves that no other
    attempt has taken the id since.
    """

    def __init__(self, options: KafkaOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._options = options
        self._txn = txn
        self._ticket = Ticket.load(ticket)
        self._id = str(self._ticket.id(txn))
        self._rows = 0
        self._doing = f"sink {txn.sink}: write epoch {txn.epoch} to {options.topic or 'the topics of its rows'}"
        client_id = f"exactsink.{txn.job}.{txn.sink}"
        header = None if options.epoch_header is None else (options.epoch_header, str(txn.epoch).encode())
        self._wire = Wire(options, client_id)
        joins = self._ticket.marking.joins
        self._producer = row_producer(options, self._wire, self._id, client_id, self._doing, header, joins)
        self._gone = weakref.finalize(self, _close, self._producer, self._wire)
        self._gone.atexit = False  # the end of the process closes both
        try:
            if not self._ticket.marking.raises:  # takes a second epoch, which the end can't share with another use
                self._wire.take(self._id)
            self._check_cluster(self._producer.open(_OPENING_SECONDS))
            self._mine = self._described().transaction
            self._until = time.monotonic() + options.transaction_timeout_seconds
        except BaseException:
            self.abort()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        self._producer.take(batch, self._left())
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        if self._rows == 0:
            raise ValueError("a participant without rows has no vote")
        try:
            self._producer.flush(self._left())
            vote, began = self._vote()
        finally:
            self.abort()  # closes the producer: the transaction stays open
        ref = vote.transaction.ref
        # The driver compares the deadline with its own clock; this executor's clock is not used. Brokers report when
        # the transaction began, and the driver knows when it opened the epoch. The later time counts.
        deadline = max(began, self._ticket.opened) + self._options.transaction_timeout_seconds
        return Committable(self._txn, self._rows, vote.dump(), PAYLOAD_VERSION, deadline=deadline, store_ref=ref)

    def abort(self) -> None:
        """Close the clients and leave the transaction open: the driver's sweep ends it. Idempotent."""
        self._gone()

    def _vote(self) -> tuple[Voted, float]:
        """Return the vote (the transaction and its first offsets), and when the transaction began.

        Raises if a topic was made again, because it lacks rows. The sink's mark is written in the same transaction, so
        it becomes visible with the rows.
        """
        topic, marking = self._options.topic, self._marking()
        topics, known, *codes = self._wire.ask(
            self._wire.about_topics([] if topic is None else [topic]),
            self._wire.about_transactions([self._id]),
            *marking,
        )
        for code in codes:
            self._check_mark(code)
        found, marked = self._known(known), self._ticket.marking.place
        if codes and marked is None:
            found = self._described()  # with the mark's place
        if found.transaction != self._mine or found.state != "Ongoing":
            raise self._ended(f"{found.transaction.ref} is {found.state}, this attempt's was {self._mine.ref}")
        if topic is None:
            topics = self._wire.topics({name for name, _ in found.partitions})  # before the offsets: see above
        there = self._wire.rows_of(self._mine, found.partitions)
        missing = [f"{name}/{number}" for name, number in found.partitions if (name, number) not in there]
        if missing or not there or topics.keys() != {name for name, _ in there}:
            raise self._ended(f"no rows of it are in {', '.join(missing) or 'any partition'} any more")
        self._check_count(sum(rows.last_sequence + 1 for rows in there.values()))
        marked = next(iter(found.offsets), marked if codes else None)
        return Voted(self._mine, self._ticket.cluster, _written(topics, there), marked), found.started or 0.0

    def _marking(self) -> Sequence[Question[int]]:
        """Return the question that writes the mark; none if the sink keeps no mark."""
        txn, topic, marking = self._txn, self._options.marked_topic, self._ticket.marking
        if topic is None or not marking.lineage:
            return []
        mark = mark_offset(txn.job, txn.sink, topic, Mark(marking.lineage, txn.epoch, frozenset([txn.token])))
        if not marking.joins:
            self._check_mark(self._wire.join(self._mine, mark.group), id=self._id)
        return [self._wire.about_offset(self._mine, mark, joins=marking.joins, keeper=marking.keeper)]

    def _check_mark(self, code: int, *, id: str = "") -> None:
        """Raise the error for a code about the mark, from the group's coordinator, or the coordinator of `id`."""
        if code in NOT_MINE:
            raise self._ended(f"{self._mine.ref} accepts no mark: {named(code)}")
        if code:
            topic, group = self._options.marked_topic or "", group_of(self._txn.job, self._txn.sink)
            doing = f"{self._doing}: write the mark of {topic} to group {group}"
            raise refused(doing, code, self._options, id=id, topic=topic, group=group)

    def _check_count(self, taken: int) -> None:
        """Compare the brokers' count of rows with the writer's: the client's own report is not enough."""
        if (taken - self._rows) % _SEQUENCES:
            what, why = f"the brokers have {taken} rows of {self._rows}", f"the client reported no failure; {UNDECIDED}"
            fix = 'start the job again; if it fails again, set writer = "plain" and report it'
            raise Retryable(f"{self._doing}: {what}", why=why, next=fix)

    def _described(self) -> Described:
        return self._known(self._wire.describe([self._id]))

    def _known(self, described: Mapping[str, Described]) -> Described:
        found = described.get(self._id)
        if found is None:
            raise self._ended(f"the coordinator does not know {self._id}")
        return found

    def _ended(self, why: str) -> Retryable:
        return Retryable(f"{self._doing}: {ENDED}", why=f"{why}; {UNDECIDED}", next=ENDED_NEXT)

    def _check_cluster(self, found: str) -> None:
        if found != self._ticket.cluster:
            what = f"{self._doing}: this executor reaches another cluster than the driver"
            why = f"the executor reaches {found}, the driver {self._ticket.cluster}"
            fix = "name brokers in bootstrap_servers that have the same address from everywhere"
            raise Fatal(what, why=why, next=fix)

    def _left(self) -> float:
        """Return how many seconds of the transaction's time are left."""
        return max(0.0, self._until - time.monotonic())


def row_producer(
    options: KafkaOptions,
    wire: Wire,
    id: str,
    client: str,
    doing: str,
    header: Header | None = None,
    joins: bool = False,
) -> RowProducer:
    """Make the producer that the options choose; `auto` takes the fast one if the options allow it.

    `client`: the client's id. `header` is added to every record. `joins`: see `Cluster`.
    """
    failures = Failures(doing, options)
    why = 'writer = "plain"' if options.writer == "plain" else slow_because(options)
    if why is None:
        made: Client = ColumnsClient(wire, options, id, Settings.of(options, doing), failures, joins=joins)
    else:
        settings = producer_settings(options, id, client)
        made = PlainClient(settings, options.topic, failures, doing, partial(wire.find, id))
    _LOG.debug("%s: the %s", doing, "fast writer" if why is None else f"plain writer: {why}")
    return RowProducer(made, options.topic, doing, header)


def _close(producer: RowProducer, wire: Wire) -> None:
    producer.drop()
    wire.close()


def _written(topics: Mapping[str, Topic], there: Mapping[Place, OpenProducer]) -> tuple[Written, ...]:
    """Return the first offsets of the rows, by topic."""
    first = {place: rows.first_offset for place, rows in sorted(there.items())}
    return tuple(
        Written(name, topics[name].id, {number: offset for (topic, number), offset in first.items() if topic == name})
        for name in sorted(topics)
    )
