"""Backends with a defect: what the matrix must not let pass."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from exactsink.backend import Committer, Writer
from exactsink.model import Committable, Committed, InDoubt, JobContext, Outcome, Txn
from exactsink.sinks import Sink
from exactsink_files.backend import FilesBackend

__all__ = ["SABOTAGES", "plant"]


class _EarlyWriter(Writer):
    """Publishes at pre_commit."""

    def __init__(self, writer: Writer, committer: Committer) -> None:
        self._writer = writer
        self._committer = committer

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def pre_commit(self) -> Committable:
        committable = self._writer.pre_commit()
        self._committer.commit(committable.txn.epoch, [committable])
        return committable

    def abort(self) -> None:
        self._writer.abort()


class PublishesEarly(FilesBackend):
    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _EarlyWriter(super().writer(txn, schema, ticket), self.committer(JobContext(txn.job, txn.sink, "")))


class _Wrapped(Committer):
    """A committer whose calls go to the real one."""

    def __init__(self, real: Committer) -> None:
        self._real = real

    def check(self, schema: pa.Schema, participants: int | None) -> Any:
        return self._real.check(schema, participants)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return self._real.open_epoch(epoch, schema, participants)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return self._real.commit(epoch, committables)

    def abort(self, undecided: Any) -> None:
        self._real.abort(undecided)

    def in_doubt(self) -> Iterable[InDoubt]:
        return self._real.in_doubt()

    def close(self) -> None:
        self._real.close()


class _CopiesAgain(_Wrapped):
    """Publishes a second copy when it commits again."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        for committable, outcome in zip(committables, outcomes, strict=True):
            if not isinstance(outcome, Committed):
                vote = json.loads(committable.payload)
                for path in Path(vote["root"]).rglob(f"{committable.txn.id}.*"):
                    (path.parent / f"again-{os.getpid()}-{path.name}").write_bytes(path.read_bytes())
        return outcomes


class NotIdempotent(FilesBackend):
    def committer(self, ctx: JobContext) -> Committer:
        return _CopiesAgain(super().committer(ctx))


class _ForgetsCommit(_Wrapped):
    """Says Committed, and does nothing, for a sink's second participant."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        super().commit(epoch, committables[:1])
        return [Committed() for _ in committables]


class SwallowsCommits(FilesBackend):
    def committer(self, ctx: JobContext) -> Committer:
        return _ForgetsCommit(super().committer(ctx))


class _NeverAborts(_Wrapped):
    def abort(self, undecided: Any) -> None:
        """Leave everything in place."""


class LeavesOrphans(FilesBackend):
    def committer(self, ctx: JobContext) -> Committer:
        return _NeverAborts(super().committer(ctx))


SABOTAGES: Mapping[str, Callable[..., FilesBackend]] = {
    "publishes early": PublishesEarly,
    "not idempotent": NotIdempotent,
    "swallows commits": SwallowsCommits,
    "leaves orphans": LeavesOrphans,
}


def plant(name: str, sinks: Mapping[str, Sink]) -> Mapping[str, Sink]:
    """Put a sabotaged backend in the place of the lake's."""
    return {**sinks, "lake": replace(sinks["lake"], backend=SABOTAGES[name](sinks["lake"].backend.options))}
