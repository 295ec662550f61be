"""Strategies to come, over stores in memory: what is common to them. A store is a strategy's own part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

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

Rows = list[dict[str, Any]]


class Store(Protocol):
    """What stands behind a sink, as its own protocol has it. `rows` are those that a reader sees."""

    strategy: str
    traits: Traits

    def prepare(self, txn: Txn, rows: Rows) -> bytes: ...
    def commit(self, txn: Txn, payload: bytes) -> Outcome: ...
    def abort(self, txn: Txn) -> None: ...
    def listed(self) -> Iterable[Txn]: ...
    def rows(self) -> Rows: ...


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
        self._rows += batch.to_pylist()

    def pre_commit(self) -> Committable:
        return Committable(self._txn, len(self._rows), self._store.prepare(self._txn, self._rows))

    def abort(self) -> None:
        self._rows.clear()


class MemoryCommitter(Committer):
    def __init__(self, store: Store, ctx: JobContext) -> None:
        self._store = store
        self._ctx = ctx

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        return ()

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return b""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return [self._store.commit(c.txn, c.payload) for c in committables]

    def abort(self, undecided: Undecided) -> None:
        for txn in filter(None, (Txn.parse(participant.ref) for participant in undecided)):
            self._store.abort(txn)

    def in_doubt(self) -> Iterable[InDoubt]:
        mine = (self._ctx.job, self._ctx.sink)
        return [InDoubt.of(txn) for txn in self._store.listed() if (txn.job, txn.sink) == mine]

    def close(self) -> None:
        pass
