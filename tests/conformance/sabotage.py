"""Backends with a defect: what the matrix must not let pass."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Committable, Committed, Committer, JobContext, Outcome, Txn, Undecided, Writer
from exactsink.protocol.sinks import Sink
from exactsink.testing.wrapped import WrappedCommitter, WrappedWriter
from exactsink_files.backend import FilesBackend

__all__ = ["SABOTAGES", "plant"]


class _EarlyWriter(WrappedWriter):
    """Publishes at pre_commit."""

    def __init__(self, writer: Writer, committer: Committer) -> None:
        super().__init__(writer)
        self._committer = committer

    def pre_commit(self) -> Committable:
        committable = super().pre_commit()
        self._committer.commit(committable.txn.epoch, [committable])
        return committable


class PublishesEarly(FilesBackend):
    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _EarlyWriter(super().writer(txn, schema, ticket), self.committer(JobContext(txn.job, txn.sink, "")))


class _CopiesAgain(WrappedCommitter):
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


class _ForgetsCommit(WrappedCommitter):
    """Says Committed, and does nothing, for a sink's second participant."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        super().commit(epoch, committables[:1])
        return [Committed() for _ in committables]


class SwallowsCommits(FilesBackend):
    def committer(self, ctx: JobContext) -> Committer:
        return _ForgetsCommit(super().committer(ctx))


class _NeverAborts(WrappedCommitter):
    def abort(self, undecided: Undecided) -> None:
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
