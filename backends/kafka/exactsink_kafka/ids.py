"""Transactional ids: a bounded pool under each claim, and what names one use of an id.

A broker keeps every transactional id for a week or so, so ids are used again. An id is never shared by two attempts
that may be alive in the same epoch or the next: a task takes its id by Spark's taskAttemptId modulo a pool several
times the participants, and each epoch, or rewriting of lost votes, takes the next of a few rounds of such pools.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from exactsink.contract import NAME_PATTERN, Txn

__all__ = ["ROUNDS", "UNBOUNDED_SLOTS", "PoolId", "Ticket", "prefix", "slots_of"]

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
        reported = cls(found["job"], found["sink"], int(found["generation"]), found["token"], int(found["slot"]))
        return reported if str(reported) == text else None  # a leading zero is somebody else's spelling


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
        return json.dumps({"first_slot": self.first_slot, "slots": self.slots, "cluster": self.cluster}).encode()

    @classmethod
    def load(cls, ticket: bytes) -> Ticket:
        return cls(**json.loads(ticket))


def prefix(job: str, sink: str) -> str:
    """Return what all transactional ids of a job's sink begin with; names hold no dot, so no other's id does."""
    return f"{job}.{sink}.g"


def slots_of(participants: int | None, ids_per_participant: int) -> int:
    """Return the size of a round for at most so many participants, None when nothing bounds them."""
    return UNBOUNDED_SLOTS if participants is None else max(participants, 1) * ids_per_participant
