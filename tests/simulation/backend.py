"""A sink's store in the simulated world: it prepares, commits, drops votes and forgets, as the schedule says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Backend,
    BackendOptions,
    Committable,
    Committed,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Traits,
    Txn,
    Undecided,
    Unknown,
    Writer,
)
from exactsink.protocol.journal.records import BoundSink
from tests.simulation.world import CONFIG, Participant, Violation, World

T = TypeVar("T")
Rows = list[dict[str, Any]]


class SinkBackend(Backend):
    """A sink that keeps marks, where its world does.

    The lake's store commits participants one by one, and counts them. The table's has names of its own, commits an
    epoch as one, and doesn't count, but where its world says so.
    """

    def __init__(self, store: SinkStore) -> None:
        super().__init__(BackendOptions())
        self.store = store

    @property
    def strategy(self) -> str:
        return self.store.strategy

    @property
    def target(self) -> str:
        return self.store.target

    @property
    def traits(self) -> Traits:
        return self.store.traits

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return SinkWriter(self.store, txn, ticket.decode())

    def committer(self, ctx: JobContext) -> Committer:
        return SinkCommitter(self.store, ctx)


class SinkWriter(Writer):
    def __init__(self, store: SinkStore, txn: Txn, lineage: str) -> None:
        self._store = store
        self._txn = txn
        self._lineage = lineage
        self._rows: Rows = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += self._store.taken(self._txn, batch.to_pylist())

    def pre_commit(self) -> Committable:
        ref = self._store.call(lambda: self._store.prepared(self._txn, self._rows, self._lineage))
        return Committable(self._txn, len(self._rows), b"", store_ref=ref if ref != self._txn.id else None)

    def abort(self) -> None:
        self._rows.clear()


class SinkCommitter(Committer):
    def __init__(self, store: SinkStore, ctx: JobContext) -> None:
        self._store = store
        self._ctx = ctx

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        return ()

    def close(self) -> None:
        """Nothing is open."""

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return self._store.call(self._ctx.lineage.encode, reads=True)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        self._store.begin_commit(len(committables))
        if not self._store.one_by_one:
            return self._store.call(lambda: [self._store.commit(c.txn) for c in committables])
        return [self._store.call(partial(self._store.commit, c.txn)) for c in committables]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        return [self._store.call(partial(self._store.stands, c.txn), reads=True) for c in committables]

    def abort(self, undecided: Undecided) -> None:
        refs = {participant.ref for participant in undecided}
        self._store.call(lambda: self._store.abort_all(refs))

    def in_doubt(self) -> Iterable[InDoubt]:
        """List what is prepared; a store with names of its own does not know of which epoch it is."""
        listed = self._store.call(lambda: self._store.held(self._ctx.job), reads=True)
        return [
            InDoubt.of(txn) if ref == txn.id else InDoubt(ref, txn.generation, txn.token) for txn, ref in listed.items()
        ]

    def mark(self) -> Mark | None:
        return self._store.mark_of(self._ctx.job)

    def put_birth(self) -> Mark:
        return self._store.put_birth(self._ctx.job, self._ctx.lineage)

    def trim_marks(self) -> None:
        """Nothing to do: what a participant was is its mark."""


class SinkStore:
    """One driver's connection. With marks, each committed participant is its own proof, as a row beside it would be."""

    def __init__(self, world: World, actor: str, bound: BoundSink = CONFIG[0]) -> None:
        self._world = world
        self._actor = actor
        self.sink = bound.name
        self.target = bound.target
        self.strategy = bound.strategy
        self._session = -1
        self.traits = Traits(can_lose_votes=True, marks=world.schedule.marks)
        self.one_by_one = world.schedule.in_steps and self.sink == "lake"
        self.flushes = True

    @property
    def _participants(self) -> dict[Txn, Participant]:
        return self._world.sinks[self.target]

    def call(self, effect: Callable[[], T], *, reads: bool = False) -> T:
        """Make one call of the backend to its store; one that only `reads` changes nothing."""
        if self.sink in self._world.away[self._actor]:
            raise Retryable("the store is away")
        return self._world.call(self._actor, Retryable, effect, reads=reads)

    def taken(self, txn: Txn, rows: Rows) -> Rows:
        """Return what a writer takes of the rows that it is handed: all, but where its world drops one."""
        if txn.epoch not in self._world.dropped:
            return rows
        self._world.dropped.discard(txn.epoch)
        return rows[:-1]

    def prepared(self, txn: Txn, rows: Rows, lineage: str) -> str:
        """Prepare a participant; return the store's own name of it."""
        written = tuple(row["row"] for row in rows)
        self._participants[txn] = Participant(
            written, ref_of(txn), lineage, begun=self._world.clock, flushed=self.flushes, strategy=self.strategy
        )
        return ref_of(txn)

    def begin_commit(self, participants: int) -> None:
        """Note which of this driver's next calls are a commit's: between them and its look at the mark is nothing."""
        first, calls = self._world.steps[self._actor], participants if self.one_by_one else 1
        self._world.commits[self._actor].update(range(first, first + calls))

    def commit(self, txn: Txn) -> Outcome:
        if self.traits.marks and self._session != self._world.sessions[self.target]:
            raise Retryable("the session in which the mark was read is lost")
        participant = self._participants.get(txn)
        if participant is None or participant.strategy != self.strategy:
            return self._absent(txn)
        if participant.state == "dropped":
            return Lost(f"{txn.id} timed out")
        if participant.state == "aborted" and self._world.is_forked:  # by the other history
            return self._absent(txn)
        if participant.state == "aborted":
            raise Violation(f"{txn.id} is decided, and was aborted")
        again = participant.state == "committed"
        if not again or self._world.not_idempotent:
            for row in participant.rows:
                self._world.show(self.target, txn, row)
        participant.state = "committed"
        return AlreadyCommitted() if again else Committed()

    def stands(self, txn: Txn) -> Standing:
        """Return how a participant stands, as `commit` would find it."""
        participant = self._participants.get(txn)
        if participant is None or participant.strategy != self.strategy or participant.state == "aborted":
            return self._absent(txn)
        if participant.state == "dropped":
            return Lost(f"{txn.id} timed out")
        return AlreadyCommitted() if participant.state == "committed" else Prepared()

    def _absent(self, txn: Txn) -> AlreadyCommitted | Lost | Unknown:
        if not self.traits.marks:
            return Unknown(f"{txn.id} is forgotten")
        above = max((known.epoch for known in self._committed(txn.job)), default=-1) > txn.epoch
        return AlreadyCommitted() if above else Lost(f"{txn.id} is neither prepared nor committed")

    def abort_all(self, refs: Collection[str]) -> None:
        """Abort these participants, by the store's own names."""
        for txn, participant in self._participants.items():
            if participant.ref in refs:
                if participant.state == "committed" and not self._world.is_forked:
                    raise Violation(f"{txn.id} was committed, and is aborted")
                if participant.state == "prepared":
                    participant.state = "aborted"

    def held(self, job: str) -> dict[Txn, str]:
        """Return what a job has prepared here, with this strategy, and the store's own names of it."""
        self._world.listed[self._actor, self.target] = self._world.clock
        found = {txn: p for txn, p in self._participants.items() if p.state == "prepared"}
        return {t: p.ref for t, p in found.items() if (t.job, t.sink, p.strategy) == (job, self.sink, self.strategy)}

    def mark_of(self, job: str) -> Mark | None:
        """Read a job's mark: a step of its own only where something may go back between it and the next."""

        def effect() -> Mark | None:
            self._world.seen[self._actor, self.target] = frozenset(self._committed(job))
            return self._mark(job)

        self._session = self._world.sessions[self.target]
        return self.call(effect, reads=True) if self._world.schedule.in_steps else effect()

    def put_birth(self, job: str, lineage: str) -> Mark:
        def effect() -> Mark:
            self._world.births.setdefault((self.target, job), lineage)
            found = self._mark(job)
            assert found is not None
            return found

        return self.call(effect)

    def _committed(self, job: str) -> list[Txn]:
        return [txn for txn, p in self._participants.items() if p.state == "committed" and txn.job == job]

    def _mark(self, job: str) -> Mark | None:
        committed = self._committed(job)
        lineage = self._world.births.get((self.target, job))
        if lineage is None:
            return None
        if not committed:
            return Mark(lineage)
        epoch = max(txn.epoch for txn in committed)
        highest = [txn for txn in committed if txn.epoch == epoch]
        lineage = self._participants[highest[0]].lineage
        count = len(highest) if self.sink in self._world.counting else None
        return Mark(lineage, epoch, frozenset(txn.token for txn in highest), count)


def ref_of(txn: Txn) -> str:
    """Return the store's own name of a participant: the table's store counts what it is handed."""
    return txn.id if txn.sink == "lake" else f"slot-{txn.job}-{txn.attempt}"
