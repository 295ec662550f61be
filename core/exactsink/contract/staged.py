"""The write-ahead way for plugin authors: rows are staged durably, then applied in one target transaction.

The author writes an `Applier`: one transaction that holds the rows and the (job, sink) marker. Staging, votes, the
sweep, replays and lineage are done here.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from exactsink.contract.backend import Backend, Committer, Writer
from exactsink.contract.durable import DurableFile, file_sha256, make_folder, sync_folders
from exactsink.contract.errors import Fatal, LineageError
from exactsink.contract.model import (
    AlreadyCommitted,
    Committable,
    Committed,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Txn,
    Undecided,
    Unknown,
)

__all__ = ["Applier", "Marker", "StagedBackend", "StagedCommitter", "StagingBackend"]

_SUFFIX = ".arrow"
_STAGING_FIX = "set [job] staging to a folder that the driver and every executor can write to"


@dataclass(frozen=True, slots=True)
class Marker:
    """Which epoch a target last applied for (job, sink): written in the same transaction as its rows."""

    job: str
    sink: str
    lineage: str
    epoch: int
    generation: int

    def must_apply(self, stored: Marker | None) -> bool:
        """Return whether this epoch is yet to be applied, given the marker read inside the applying transaction.

        An older write never overwrites a newer one: a driver that was stalled finds its epoch applied. A marker of
        another journal raises LineageError.
        """
        if stored is None:
            return True
        if stored.lineage != self.lineage:
            raise _foreign_marker(self, stored)
        return stored.epoch < self.epoch

    def check_new(self, stored: Marker | None) -> None:
        """Raise LineageError unless this epoch, which is about to be opened, comes after the target's marker."""
        if not self.must_apply(stored):
            raise LineageError(
                f"sink {self.sink}: the target already holds epoch {self.epoch}",
                why="its marker is ahead of the journal, which therefore went back in time; its rows would be skipped",
                next="bring back the newest journal, or give this job another name",
            )


class Applier(ABC):
    """Apply staged rows to the target, in the driver. Used by one thread at a time."""

    @abstractmethod
    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        """Look before the first row whether the target can take such rows. Changes nothing."""

    @abstractmethod
    def open_epoch(self, schema: pa.Schema) -> None:
        """Make the target and the marker's table when the options say so. Idempotent."""

    @abstractmethod
    def last_applied(self, job: str, sink: str) -> Marker | None:
        """Read the marker of (job, sink); None when this target never applied an epoch of it."""

    @abstractmethod
    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        """In ONE transaction: read the stored marker under a lock, apply `batches` and store `marker` if
        `marker.must_apply(stored)`; return whether it did. Durable when it returns. Batches come in a fixed order.

        Raises Retryable when the target may answer later, Fatal when a person must fix something first.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what was opened."""


class StagingBackend(Backend):
    """A backend whose rows wait in Arrow files under `[job] staging` until the epoch is decided.

    Authors extend one of its two subclasses: `StagedBackend`, or `exactsink.contract.idempotent.IdempotentBackend`.
    """

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Refuse, in the task, rows that could never be applied: after the decision it is too late. Raises Fatal."""

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _StagedWriter(self, txn, schema, Path(ticket.decode()))


class StagedBackend(StagingBackend):
    """Stage rows, then apply an epoch in one transaction of the target, together with its marker."""

    @abstractmethod
    def applier(self) -> Applier:
        """Make the driver's side."""

    def committer(self, ctx: JobContext) -> Committer:
        return StagedCommitter(ctx, self.applier())


class _StagedWriter(Writer):
    """Write one Arrow file per participant, named by its id."""

    def __init__(self, backend: StagingBackend, txn: Txn, schema: pa.Schema, folder: Path) -> None:
        self._backend = backend
        self._txn = txn
        self._rows = 0
        self._path = folder / (txn.id + _SUFFIX)
        try:
            self._file = DurableFile(self._path)
        except FileNotFoundError:
            what = f"staging folder {folder} is not there on this executor"
            raise Fatal(what, why="the driver made it", next=_STAGING_FIX) from None
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._backend.check_batch(batch)
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        self._stream.close()
        size, sha256 = self._file.seal()
        sync_folders([self._path.parent])
        payload = json.dumps({"path": str(self._path), "size": size, "sha256": sha256})
        return Committable(self._txn, self._rows, payload.encode())

    def abort(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class StagedCommitter(Committer):
    """Apply a decided epoch's staged files, then drop them. The marker says whether that was done before."""

    def __init__(self, ctx: JobContext, applier: Applier) -> None:
        self._ctx = ctx
        self._applier = applier
        self._folder = Path(ctx.staging)
        self._made = False

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        place = next(place for place in (self._folder, *self._folder.absolute().parents) if place.exists())
        if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            yield Finding("error", f"staging folder {self._folder} can't be written: {place}", _STAGING_FIX)
        yield from self._applier.check(schema)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        if not self._made:
            make_folder(self._folder)
            self._made = True
        self._applier.open_epoch(schema)
        stored = self._applier.last_applied(self._ctx.job, self._ctx.sink)
        self._marker(epoch, self._ctx.generation).check_new(stored)
        return str(self._folder).encode()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        marker = self._marker(epoch, max(c.txn.generation for c in committables))
        stored = self._applier.last_applied(marker.job, marker.sink)
        if not marker.must_apply(stored):
            self._drop(committables)
            return [AlreadyCommitted() for _ in committables]
        ordered = sorted(committables, key=lambda c: (c.txn.partition, c.txn.attempt))
        damage = [found for c in ordered if (found := _damage(c)) is not None]
        try:
            applied = not damage and self._applier.apply(marker, _staged_batches(ordered))
        except FileNotFoundError as gone:
            damage, applied = [f"staged file {gone.filename} is gone"], False
        # Another driver may have applied the epoch, and dropped its files, since the marker was read.
        if damage and marker.must_apply(self._applier.last_applied(marker.job, marker.sink)):
            return [Unknown("; ".join(damage)) for _ in committables]
        self._drop(committables)
        return [Committed() if applied else AlreadyCommitted() for _ in committables]

    def abort(self, undecided: Undecided) -> None:
        for participant in undecided:
            (self._folder / (participant.ref + _SUFFIX)).unlink(missing_ok=True)

    def in_doubt(self) -> Iterable[InDoubt]:
        if not self._folder.is_dir():
            return
        now = time.time()
        for path in self._folder.glob(f"{self._ctx.job}.{self._ctx.sink}.*{_SUFFIX}"):
            txn = Txn.parse(path.name.removesuffix(_SUFFIX))
            if txn is None:
                continue
            try:
                yield InDoubt.of(txn, age_seconds=now - path.stat().st_mtime)
            except FileNotFoundError:  # dropped between listing and looking
                continue

    def close(self) -> None:
        self._applier.close()

    def _marker(self, epoch: int, generation: int) -> Marker:
        return Marker(self._ctx.job, self._ctx.sink, self._ctx.lineage, epoch, generation)

    def _drop(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            _path(committable).unlink(missing_ok=True)


def _foreign_marker(mine: Marker, stored: Marker) -> LineageError:
    """Refuse a target whose marker another journal wrote: skipping its epochs, or repeating them, would be silent."""
    return LineageError(
        f"sink {mine.sink}: the target was fed by another journal of job {mine.job}",
        why=f"its marker holds epoch {stored.epoch} of lineage {stored.lineage}, this journal's is {mine.lineage}",
        next="give this job another name, or bring back the journal that the target belongs to",
    )


def _path(committable: Committable) -> Path:
    return Path(json.loads(committable.payload)["path"])


def _damage(committable: Committable) -> str | None:
    """Return what is wrong with a staged file, None when it is as it was voted."""
    voted = json.loads(committable.payload)
    path = Path(voted["path"])
    try:
        whole = path.stat().st_size == voted["size"] and file_sha256(path) == voted["sha256"]
    except FileNotFoundError:
        return f"staged file {path} is gone, and no marker holds its epoch"
    return None if whole else f"staged file {path} is not what was voted ({voted['size']} bytes)"


def _staged_batches(committables: Sequence[Committable]) -> Iterator[pa.RecordBatch]:
    for committable in committables:
        with pa.memory_map(str(_path(committable))) as source, pa.ipc.open_stream(source) as reader:
            yield from reader
