"""Halves of backends that refuse every call, for tests that give them only what they need; and a proof made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from exactsink.contract import (
    Backend,
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


class IdleBackend(Backend):
    """A backend with options only."""

    strategy, target, traits = "idle", "nowhere", Traits()

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        raise NotImplementedError

    def committer(self, ctx: JobContext) -> Committer:
        raise NotImplementedError


class IdleCommitter(Committer):
    """A committer that nobody may call."""

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        raise NotImplementedError

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        raise NotImplementedError

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        raise NotImplementedError

    def abort(self, undecided: Undecided) -> None:
        raise NotImplementedError

    def in_doubt(self) -> Iterable[InDoubt]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
