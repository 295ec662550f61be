"""What names a transaction: the pool of ids that it takes one of, a task's ticket to it, and the vote that ends it.

A broker keeps every transactional id for a week or so, so ids are used again. An id is never shared by two attempts
that may be alive in the same epoch or the next: a task takes its id by Spark's taskAttemptId modulo a pool several
times the participants, and each epoch, or rewriting of lost votes, takes the next of a few rounds of such pools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from exactsink.contract import NAME_PATTERN, Committable, Fatal, Txn

__all__ = ["PoolId", "Ticket", "Transaction", "Vote", "Written", "prefix", "slots_of"]

PAYLOAD_VERSION = 1
"""Of the votes that this release writes and reads."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One use of a transactional id: nothing else ever has the same producer id and epoch."""

    id: str
    producer_id: int
    producer_epoch: int

    @property
    def ref(self) -> str:
        """Name it as committables and listings do."""
        return f"{self.id}/{self.producer_id}/{self.producer_epoch}"

    def is_use_of(self, named: Transaction) -> bool:
        """Return whether a coordinator speaks of this very use: of its epoch, or the one that its end raised it to."""
        return (named.id, named.producer_id) == (self.id, self.producer_id) and named.producer_epoch in (
            self.producer_epoch,
            self.producer_epoch + 1,
        )

    @classmethod
    def of_ref(cls, ref: str) -> Transaction:
        """Read a `ref` back. Raises ValueError when it is none."""
        parts = ref.rsplit("/", 2)
        known = len(parts) == 3 and all(map(str.isdecimal, parts[1:]))
        read = cls(parts[0], int(parts[1]), int(parts[2])) if known else None
        if read is None or read.ref != ref:  # a leading zero is somebody else's spelling
            raise ValueError(f"{ref!r} is no transaction's ref")
        return read


@dataclass(frozen=True, slots=True)
class Written:
    """Where the transaction's rows begin in the partitions of one topic.

    `topic_id` is the broker's own id of it (a UUID), which a topic made again under the same name does not have;
    `first_offsets` is by partition.
    """

    topic: str
    topic_id: str
    first_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Vote:
    """The payload of a committable. A transaction ends as one, so one readable partition of it proves how."""

    transaction: Transaction
    cluster: str
    written: tuple[Written, ...]

    def dump(self) -> bytes:
        written = [asdict(topic) for topic in self.written]
        return json.dumps({**asdict(self.transaction), "cluster": self.cluster, "written": written}).encode()

    @classmethod
    def load(cls, committable: Committable) -> Vote:
        """Read a committable's payload. Raises Fatal for a later release's."""
        if committable.version != PAYLOAD_VERSION:
            what = f"{committable.txn.id}: can't read a vote of version {committable.version}"
            fix = "start the job with the release of exactsink that wrote the epoch"
            raise Fatal(what, why=f"this release reads version {PAYLOAD_VERSION}", next=fix)
        read = json.loads(committable.payload)
        written = tuple(
            Written(w["topic"], w["topic_id"], {int(p): offset for p, offset in w["first_offsets"].items()})
            for w in read["written"]
        )
        return cls(
            Transaction(read["id"], read["producer_id"], read["producer_epoch"]),
            read["cluster"],
            written,
        )


ROUNDS = 3
"""Rounds of pools: an epoch's, that of its lost votes, and the next epoch's never meet."""

UNBOUNDED_SLOTS = 1024
"""The size of a round where nothing bounds the participants. taskAttemptIds are consecutive within an epoch, save for
tasks of other Spark jobs. Two participants of an epoch that came to share an id would cost a rewriting of the first
one's rows, which the second one's begin aborts, and never a row."""

_ID = re.compile(
    rf"(?P<job>{NAME_PATTERN})\.(?P<sink>{NAME_PATTERN})\.g(?P<generation>\d{{1,19}})-(?P<token>[0-9a-f]+)"
    r"\.s(?P<slot>\d{1,19})"
)


@dataclass(frozen=True, slots=True)
class PoolId:
    """A transactional id of ours."""

    job: str
    sink: str
    generation: int
    token: str
    slot: int

    def __str__(self) -> str:
        return f"{self.job}.{self.sink}.g{self.generation}-{self.token}.s{self.slot}"

    @classmethod
    def parse(cls, text: str) -> PoolId | None:
        """Read an id back; None when it is not one of ours (a foreign id, which nobody here may touch)."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        read = cls(found["job"], found["sink"], int(found["generation"]), found["token"], int(found["slot"]))
        return read if str(read) == text else None  # a leading zero is somebody else's spelling


@dataclass(frozen=True, slots=True)
class Ticket:
    """What every task's writer needs of the driver: a round's pool of ids, and the cluster that the driver means."""

    first_slot: int
    slots: int
    cluster: str

    @classmethod
    def of_round(cls, round: int, slots: int, cluster: str) -> Ticket:
        """Return the ticket of the n-th round under a claim, counted from 0."""
        return cls(round % ROUNDS * slots, slots, cluster)

    def id(self, txn: Txn) -> PoolId:
        """Name the transactional id of a task attempt."""
        slot = self.first_slot + txn.attempt % self.slots
        return PoolId(txn.job, txn.sink, txn.generation, txn.token, slot)

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, ticket: bytes) -> Ticket:
        return cls(**json.loads(ticket))


def prefix(job: str, sink: str) -> str:
    """Return what all transactional ids of a job's sink begin with; names hold no dot, so no other's id does."""
    return f"{job}.{sink}.g"


def slots_of(participants: int | None, ids_per_participant: int) -> int:
    """Return the size of a round for at most so many participants, None when nothing bounds them."""
    return UNBOUNDED_SLOTS if participants is None else max(participants, 1) * ids_per_participant
