"""A sink's store in the simulated world: it prepares, commits, drops votes and forgets, as the schedule says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Committer,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Retryable,
    Traits,
    Txn,
    Unknown,
)
from tests.contract.memory import MemoryBackend, MemoryCommitter, Rows, Store
from tests.simulation.world import Participant, Violation, World

T = TypeVar("T")


class SinkBackend(MemoryBackend):
    """A sink that keeps marks, where its world does."""

    store: SinkStore

    def committer(self, ctx: JobContext) -> Committer:
        return SinkCommitter(self.store, ctx)


class SinkCommitter(MemoryCommitter):
    _store: SinkStore

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        if not self._store.one_by_one:
            return super().commit(epoch, committables)
        return [self._store.call(partial(self._store.commit, c.txn, c.payload)) for c in committables]

    def mark(self) -> Mark | None:
        return self._store.mark()

    def put_birth(self) -> Mark:
        return self._store.put_birth(self._ctx.lineage)

    def trim_marks(self) -> None:
        """Nothing to do: what a participant was is its mark."""


class SinkStore(Store):
    """One driver's connection. With marks, each committed participant is its own proof, as a row beside it would be."""

    strategy = "memory"

    def __init__(self, world: World, actor: str, sink: str) -> None:
        self._world = world
        self._actor = actor
        self._sink = sink
        self._session = -1
        self.traits = Traits(can_lose_votes=True, marks=world.schedule.marks)
        self.one_by_one = bool(world.schedule.restores)
        self.flushes = True

    @property
    def _participants(self) -> dict[Txn, Participant]:
        return self._world.sinks[self._sink]

    def call(self, effect: Callable[[], T], *, reads: bool = False) -> T:
        return self._world.call(self._actor, Retryable, effect, reads=reads)

    def taken(self, txn: Txn, rows: Rows) -> Rows:
        if txn.epoch not in self._world.dropped:
            return rows
        self._world.dropped.discard(txn.epoch)
        return rows[:-1]

    def prepare(self, txn: Txn, rows: Rows) -> bytes:
        self._participants[txn] = Participant(tuple(row["row"] for row in rows), flushed=self.flushes)
        return b""

    def commit(self, txn: Txn, payload: bytes) -> Outcome:
        if self.traits.marks and self._session != self._world.sessions[self._sink]:
            raise Retryable("the session in which the mark was read is lost")
        participant = self._participants.get(txn)
        if participant is None:
            return self._absent(txn)
        if participant.state == "dropped":
            return Lost(f"{txn.id} timed out")
        if participant.state == "aborted":
            raise Violation(f"{txn.id} is decided, and was aborted")
        again = participant.state == "committed"
        if not again or self._world.not_idempotent:
            for row in participant.rows:
                self._world.show(self._sink, txn.epoch, row)
        participant.state = "committed"
        return AlreadyCommitted() if again else Committed()

    def _absent(self, txn: Txn) -> Outcome:
        if not self.traits.marks:
            return Unknown(f"{txn.id} is forgotten")
        above = max((known.epoch for known in self._committed()), default=-1) > txn.epoch
        return AlreadyCommitted() if above else Lost(f"{txn.id} is neither prepared nor committed")

    def abort(self, txn: Txn) -> None:
        participant = self._participants.get(txn)
        if participant is not None and participant.state == "committed":
            raise Violation(f"{txn.id} was committed, and is aborted")
        if participant is not None and participant.state == "prepared":
            participant.state = "aborted"

    def listed(self) -> Iterable[Txn]:
        return [txn for txn, participant in self._participants.items() if participant.state == "prepared"]

    def mark(self) -> Mark | None:
        return self._looked(self._mark)

    def put_birth(self, lineage: str) -> Mark:
        def effect() -> Mark:
            self._world.births.setdefault(self._sink, lineage)
            found = self._mark()
            assert found is not None
            return found

        return self.call(effect)

    def _looked(self, effect: Callable[[], T]) -> T:
        """Read a mark: a step of its own only where something may go back between it and the next."""
        self._session = self._world.sessions[self._sink]
        return self.call(effect, reads=True) if self._world.schedule.restores else effect()

    def _committed(self) -> list[Txn]:
        return [txn for txn, participant in self._participants.items() if participant.state == "committed"]

    def _mark(self) -> Mark | None:
        committed = self._committed()
        lineage = self._world.births.get(self._sink)
        if lineage is None:
            return None
        if not committed:
            return Mark(lineage)
        epoch = max(txn.epoch for txn in committed)
        highest = [txn for txn in committed if txn.epoch == epoch]
        return Mark(lineage, epoch, frozenset(txn.token for txn in highest), len(highest))
