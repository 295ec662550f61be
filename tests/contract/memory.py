"""A backend over a store in memory: strategies to come and the simulation bring their own stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from exactsink.contract import (
    Backend,
    BackendOptions,
    Committable,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Traits,
    Txn,
    Undecided,
    Writer,
)

T = TypeVar("T")
Rows = list[dict[str, Any]]


class Store(Protocol):
    """What stands behind a sink, as its own protocol has it."""

    strategy: str
    traits: Traits

    def prepare(self, txn: Txn, rows: Rows) -> bytes: ...

    def commit(self, txn: Txn, payload: bytes) -> Outcome: ...

    def abort(self, txn: Txn) -> None: ...

    def listed(self) -> Iterable[Txn]: ...

    def taken(self, txn: Txn, rows: Rows) -> Rows:
        """Return what a writer takes of the rows that it is handed: all."""
        return rows

    def call(self, effect: Callable[[], T], *, reads: bool = False) -> T:
        """Make one call of the backend to its store; one that only `reads` changes nothing."""
        return effect()


class MemoryBackend(Backend):
    Options = BackendOptions
    target = "memory:localhost"

    def __init__(self, store: Store) -> None:
        super().__init__(BackendOptions())
        self.store = store

    @property
    def strategy(self) -> str:
        return self.store.strategy

    @property
    def traits(self) -> Traits:
        return self.store.traits

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return MemoryWriter(self.store, txn)

    def committer(self, ctx: JobContext) -> Committer:
        return MemoryCommitter(self.store, ctx)


class MemoryWriter(Writer):
    def __init__(self, store: Store, txn: Txn) -> None:
        self._store = store
        self._txn = txn
        self._rows: Rows = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += self._store.taken(self._txn, batch.to_pylist())

    def pre_commit(self) -> Committable:
        payload = self._store.call(lambda: self._store.prepare(self._txn, self._rows))
        return Committable(self._txn, len(self._rows), payload)

    def abort(self) -> None:
        self._rows.clear()


class MemoryCommitter(Committer):
    def __init__(self, store: Store, ctx: JobContext) -> None:
        self._store = store
        self._ctx = ctx

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        return ()

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return self._store.call(lambda: b"", reads=True)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return self._store.call(lambda: [self._store.commit(c.txn, c.payload) for c in committables])

    def abort(self, undecided: Undecided) -> None:
        txns = [txn for participant in undecided if (txn := Txn.parse(participant.ref)) is not None]

        def effect() -> None:
            for txn in txns:
                self._store.abort(txn)

        self._store.call(effect)

    def in_doubt(self) -> Iterable[InDoubt]:
        mine = (self._ctx.job, self._ctx.sink)
        listed = self._store.call(lambda: list(self._store.listed()), reads=True)
        return [InDoubt.of(txn) for txn in listed if (txn.job, txn.sink) == mine]

    def close(self) -> None:
        pass
