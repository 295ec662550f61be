"""The names of a transaction: the pool of transactional ids, a task's ticket to one of them, and the vote.

A broker keeps every transactional id for about a week, so ids are used again. Each partition of an epoch has a few ids,
and a task takes one of them by Spark's taskAttemptId. So two participants of an epoch never share an id, whatever else
runs in the session. Two attempts of one partition may share one. Then the later attempt aborts the rows of the earlier
attempt, which are written again if they were decided. Each epoch, and each rewrite of lost rows, takes the next of a
few rounds of ids.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from exactsink.contract import NAME_PATTERN, Committable, Fatal, Txn
from exactsink.toolkit.payloads import read_vote

__all__ = ["NO_PRODUCER", "Marking", "PoolId", "Ticket", "Transaction", "Voted", "Written", "prefix"]

PAYLOAD_VERSION = 1
"""The version of the votes that this release writes and reads."""

NO_PRODUCER = 2**63 - 1  # brokers count producer ids up from 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """One use of a transactional id: nothing else ever has the same producer id and epoch."""

    id: str
    producer_id: int
    producer_epoch: int

    @property
    def ref(self) -> str:
        """Return the name that committables and listings use."""
        return f"{self.id}/{self.producer_id}/{self.producer_epoch}"

    @property
    def producer(self) -> tuple[int, int]:
        """Return the producer's id and epoch, by which batches and leaders name it."""
        return self.producer_id, self.producer_epoch

    def is_use_of(self, named: Transaction) -> bool:
        """Return whether a coordinator names this very use: by its epoch, or by the epoch that its end gave it."""
        same = (named.id, named.producer_id) == (self.id, self.producer_id)
        return same and named.producer_epoch - self.producer_epoch in (0, 1)

    @classmethod
    def of_ref(cls, ref: str) -> Transaction:
        """Read a `ref`. Raises ValueError for any other text."""
        parts = ref.rsplit("/", 2)
        known = len(parts) == 3 and all(map(str.isdecimal, parts[1:]))
        read = cls(parts[0], int(parts[1]), int(parts[2])) if known else None
        if read is None or read.ref != ref:  # exactsink writes no leading zeros
            raise ValueError(f"{ref!r} is not a transaction's ref")
        return read


@dataclass(frozen=True, slots=True)
class Written:
    """Where the transaction's rows begin in the partitions of one topic.

    `topic_id`: the broker's id of the topic (a UUID). A topic that was made again under the same name has another id.
    `first_offsets`: by partition.
    """

    topic: str
    topic_id: str
    first_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Voted:
    """The payload of a committable. A transaction ends alike in all partitions, so one readable partition proves how.

    `marked`: the partition of __consumer_offsets that holds its part of the mark; None if the sink keeps no marks.
    """

    transaction: Transaction
    cluster: str
    written: tuple[Written, ...]
    marked: tuple[str, int] | None = None

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Return all partitions that the transaction's end has to reach, each a topic's name and a number."""
        places = tuple((written.topic, number) for written in self.written for number in written.first_offsets)
        return places + ((self.marked,) if self.marked is not None else ())

    def dump(self) -> bytes:
        rest = {"cluster": self.cluster, "written": [asdict(topic) for topic in self.written], "marked": self.marked}
        return json.dumps({**asdict(self.transaction), **rest}).encode()

    @classmethod
    def load(cls, committable: Committable) -> Voted:
        """Read a committable's payload. Raises Fatal for another form or version, or if it names a foreign id."""
        read, txn = read_vote(committable, PAYLOAD_VERSION, _Payload), committable.txn
        transaction = Transaction(read.id, read.producer_id, read.producer_epoch)
        pool = PoolId.parse(transaction.id)
        if transaction.ref != committable.store_ref or pool is None or (pool.job, pool.sink) != (txn.job, txn.sink):
            fix = "restore the journal from a copy, because somebody changed it; nothing was committed or aborted"
            raise Fatal(f"{txn.id}: its vote names transaction {transaction.ref!r}, not its own", next=fix)
        return cls(transaction, read.cluster, read.written, read.marked)


@dataclass(frozen=True, slots=True)
class _Payload(Transaction):
    """A vote as JSON has it."""

    cluster: str
    written: tuple[Written, ...]
    marked: tuple[str, int] | None = None


ROUNDS = 3
"""The number of rounds of ids: an epoch, the rewrite of its lost rows, and the next epoch never share an id."""

_ID = re.compile(
    rf"(?P<job>{NAME_PATTERN})\.(?P<sink>{NAME_PATTERN})\.g(?P<generation>\d{{1,19}})-(?P<token>[0-9a-f]+)"
    r"\.s(?P<slot>\d{1,19})"
)


@dataclass(frozen=True, slots=True)
class PoolId:
    """A transactional id of exactsink."""

    job: str
    sink: str
    generation: int
    token: str
    slot: int

    def __str__(self) -> str:
        return f"{self.job}.{self.sink}.g{self.generation}-{self.token}.s{self.slot}"

    @classmethod
    def parse(cls, text: str) -> PoolId | None:
        """Read an id; None for a foreign id, which exactsink must not touch."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        read = cls(found["job"], found["sink"], int(found["generation"]), found["token"], int(found["slot"]))
        return read if str(read) == text else None  # exactsink writes no leading zeros


@dataclass(frozen=True, slots=True)
class Marking:
    """A task's data for the sink's mark: the journal's lineage, and arguments of `Wire.write_offset`.

    `place`: the partition of __consumer_offsets that holds the mark; None if the driver has not seen it yet. `raises`:
    see `Cluster`.
    """

    lineage: str = ""
    joins: bool = False
    keeper: int = -1
    place: tuple[str, int] | None = None
    raises: bool = True


_UNMARKED = Marking()


@dataclass(frozen=True, slots=True)
class Ticket:
    """The driver's data for every task's writer: the round of ids, how many ids a participant has, the driver's
    cluster, the mark, and when the epoch was opened (Unix seconds, by the driver's clock)."""

    round: int
    ids: int
    cluster: str
    marking: Marking = _UNMARKED
    opened: float = 0.0

    @classmethod
    def of_round(cls, number: int, ids: int, cluster: str, marking: Marking = _UNMARKED) -> Ticket:
        """Return a ticket, opened now, for a claim's round of this number, counted from 0."""
        return cls(number % ROUNDS, ids, cluster, marking, time.time())

    def id(self, txn: Txn) -> PoolId:
        """Return the transactional id of a task attempt. No other partition of the epoch has it."""
        slot = (txn.partition * self.ids + txn.attempt % self.ids) * ROUNDS + self.round
        return PoolId(txn.job, txn.sink, txn.generation, txn.token, slot)

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, ticket: bytes) -> Ticket:
        read = json.loads(ticket)
        marking = read.pop("marking")
        place = tuple(marking.pop("place") or ())
        return cls(**read, marking=Marking(**marking, place=place or None))


def prefix(job: str, sink: str) -> str:
    """Return the prefix of all transactional ids of a sink. No other sink's ids have it, because names hold no dot."""
    return f"{job}.{sink}.g"
