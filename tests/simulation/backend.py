"""A backend in memory: it prepares, commits, aborts, drops votes and forgets, as the world's schedule says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
    Outcome,
    Retryable,
    Traits,
    Txn,
    Undecided,
    Unknown,
    Writer,
)
from tests.simulation.world import Participant, Violation, World


class MemoryBackend(Backend):
    Options = BackendOptions
    strategy = "memory"
    traits = Traits(can_lose_votes=True)

    def __init__(self, world: World, actor: str, sink: str) -> None:
        super().__init__(BackendOptions())
        self.world = world
        self.actor = actor
        self.sink = sink
        self.flushes = True

    @property
    def target(self) -> str:
        return f"memory://{self.sink}"

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return MemoryWriter(self, txn)

    def committer(self, ctx: JobContext) -> Committer:
        return MemoryCommitter(self)


class MemoryWriter(Writer):
    def __init__(self, backend: MemoryBackend, txn: Txn) -> None:
        self._backend = backend
        self._txn = txn
        self._rows: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.column("row").to_pylist()
        if self._txn.epoch in self._backend.world.dropped:
            self._backend.world.dropped.discard(self._txn.epoch)
            self._rows.pop()

    def pre_commit(self) -> Committable:
        world, txn = self._backend.world, self._txn
        participant = Participant(tuple(self._rows), flushed=self._backend.flushes)

        def effect() -> None:
            world.sinks[txn.sink][txn] = participant

        world.call(self._backend.actor, Retryable, effect)
        return Committable(txn, len(self._rows), b"")

    def abort(self) -> None:
        pass


class MemoryCommitter(Committer):
    def __init__(self, backend: MemoryBackend) -> None:
        self._world = backend.world
        self._actor = backend.actor
        self._sink = backend.sink

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        return ()

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return self._call(lambda: b"ticket", reads=True)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return self._call(lambda: [self._commit(c.txn) for c in committables])

    def abort(self, undecided: Undecided) -> None:
        def effect() -> None:
            for found in undecided:
                txn = Txn.parse(found.ref)
                assert txn is not None
                participant = self._world.sinks[self._sink].get(txn)
                if participant is not None and participant.state == "committed":
                    raise Violation(f"{txn.id} was committed, and is aborted")
                if participant is not None and participant.state == "prepared":
                    participant.state = "aborted"

        self._call(effect)

    def in_doubt(self) -> Iterable[InDoubt]:
        def effect() -> list[InDoubt]:
            return [InDoubt.of(txn) for txn, p in self._world.sinks[self._sink].items() if p.state == "prepared"]

        return self._call(effect, reads=True)

    def close(self) -> None:
        pass

    def _commit(self, txn: Txn) -> Outcome:
        participant = self._world.sinks[self._sink].get(txn)
        if participant is None:
            return Unknown(f"{txn.id} is forgotten")
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

    def _call(self, effect: Any, *, reads: bool = False) -> Any:
        return self._world.call(self._actor, Retryable, effect, reads=reads)
