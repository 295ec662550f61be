"""A backend that drops every row, to measure the framework's own cost. Spark's workers import it, so it is light."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from exactsink.contract import (
    Backend,
    BackendOptions,
    Committable,
    Committed,
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

if TYPE_CHECKING:
    from exactsink.protocol.sinks import Sink

__all__ = ["NullBackend", "NullCommitter", "drain", "null_sinks"]


class NullBackend(Backend):
    """Count rows, and keep none."""

    Options = BackendOptions
    strategy, target, traits = "null", "nowhere", Traits()

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _NullWriter(txn)

    def committer(self, ctx: JobContext) -> Committer:
        return NullCommitter()


class _NullWriter(Writer):
    def __init__(self, txn: Txn) -> None:
        self._txn = txn
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        return Committable(self._txn, self._rows, b"")

    def abort(self) -> None:
        """Do nothing."""


class NullCommitter(Committer):
    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        return ()

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return b""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return [Committed() for _ in committables]

    def abort(self, undecided: Undecided) -> None:
        """Do nothing."""

    def in_doubt(self) -> Iterable[InDoubt]:
        return ()

    def close(self) -> None:
        """Do nothing."""


def null_sinks(count: int) -> dict[str, Sink]:
    """Make so many null sinks."""
    from exactsink.protocol.sinks import Sink

    names = [f"null-{number}" for number in range(count)]
    return {name: Sink(name, "null", NullBackend(BackendOptions()), staging="") for name in names}


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read every batch and report the number of rows, which is the minimal work of a Python writer."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"rows": pa.array([rows], pa.int64())})
