"""The road for targets with transactions: rows are staged durably, then applied in one transaction of the target.

The author writes an `Applier`, whose transaction holds rows and marker. This module does staging, votes and sweep.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import pyarrow as pa

from exactsink.contract.backend import Backend, Committer, Writer
from exactsink.contract.errors import Fatal
from exactsink.contract.model import (
    AlreadyCommitted,
    Committable,
    Committed,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Standing,
    Txn,
    Undecided,
    Unknown,
)
from exactsink.contract.validation import BatchValidator, Validator
from exactsink.toolkit.local_paths import full_disk
from exactsink.toolkit.roads.marker import BIRTH, Marker
from exactsink.toolkit.roads.staging import (
    abort_staged,
    damage_of,
    drop_staged,
    new_staged_file,
    staged_batches,
    staged_blocks,
    staged_in_doubt,
    staged_name,
    staging_errors,
    voted,
)
from exactsink.toolkit.storage.durable import make_folder, sync_folders
from exactsink.toolkit.storage.object_checks import store_findings
from exactsink.toolkit.storage.objects import ObjectPath, path_of

__all__ = ["Applier", "MarkerCommitter", "StagedBackend", "StagedCommitter", "StagingBackend"]

_STAGING_FIX = "set [job] staging to a folder that the driver and every executor can write to, or to one on S3"


class Applier(ABC):
    """Apply staged rows to the target, in the driver. Used by one thread at a time."""

    @abstractmethod
    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        """Check, before the first row, that the target can take such rows. Changes nothing.

        Also called in a driver's first epoch, and in each epoch whose columns differ from those of the epoch before.
        """

    def check_target(self) -> Iterable[Finding]:
        """Check the target as `check` does, before the columns of the rows are known. Changes nothing."""
        return ()

    @abstractmethod
    def open_epoch(self, schema: pa.Schema) -> None:
        """Create the target, if the options say so, and the table of markers. Idempotent."""

    @abstractmethod
    def last_applied(self, job: str, sink: str) -> Marker | None:
        """Return the marker of (job, sink), None if this target never applied an epoch of it.

        If the backend keeps marks, also called before the first `open_epoch`: without a target, or a table of markers,
        it returns None. Changes nothing, and takes no lock that `apply` waits for. Reads from the server that `apply`
        writes to, never from a replica.
        """

    def put_birth(self, birth: Marker) -> Marker:
        """In ONE transaction: store `birth` if (job, sink) has no marker, and return the stored one. Durable.

        Called only if the backend's traits have `marks=True`, also before the first `open_epoch`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no put_birth, and its backend's traits say marks=True")

    def confirm(self, job: str, sink: str) -> None:  # noqa: B027  # a database needs no code here
        """Make the stored marker durable, which another process may have written, before staged rows are dropped."""

    @abstractmethod
    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        """In ONE transaction: read the stored marker under a lock and, if `marker.must_apply(stored)`, apply and store.

        Returns whether it applied `batches`, which come in a fixed order. Durable when it returns. Raises Retryable if
        the target may answer later, Fatal if a person must fix something first.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the resources that were opened."""


class StagingBackend(Backend):
    """Base of `StagedBackend` and `IdempotentBackend`: rows wait in Arrow files under `[job] staging`."""

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Refuse, in the task, rows that could never be applied: after the decision it is too late. Raises Fatal.

        If it judges each row by itself, the traits may say `validates_rows`, and then it judges rows for a quarantine.
        """

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        def check(batch: pa.RecordBatch) -> str | None:
            try:
                self.check_batch(batch)
            except Fatal as refusal:
                return refusal.what
            return None

        return BatchValidator(check, schema)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _StagedWriter(self, txn, schema, ticket.decode())


class StagedBackend(StagingBackend):
    """Stage rows, then apply an epoch in one transaction of the target, together with its marker."""

    @abstractmethod
    def applier(self) -> Applier:
        """Make the driver's side."""

    def committer(self, ctx: JobContext) -> Committer:
        return StagedCommitter(ctx, self.applier())


class _StagedWriter(Writer):
    """Write one Arrow file per participant, named by its id."""

    def __init__(self, backend: StagingBackend, txn: Txn, schema: pa.Schema, folder: str) -> None:
        self._backend = backend
        self._txn = txn
        self._rows = 0
        self._path = path_of(folder) / staged_name(txn.id)
        with staging_errors(self._path.parent):
            try:
                self._file = new_staged_file(self._path)
            except FileNotFoundError:
                what = f"staging folder {folder} does not exist on this executor"
                raise Fatal(what, why="the driver made it", next=_STAGING_FIX) from None
            self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._backend.check_batch(batch)
        with staging_errors(self._path.parent):
            self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        with staging_errors(self._path.parent):
            self._stream.close()
            size, sha256 = self._file.seal()
            sync_folders([self._path.parent])
        return Committable(self._txn, self._rows, voted(self._path, size, sha256))

    def abort(self) -> None:
        with staging_errors(self._path.parent):
            self._file.close()
            self._path.unlink(missing_ok=True)


class MarkerCommitter(Committer):
    """The part of a committer that reads and makes markers. A target's marker of (job, sink) is the sink's mark."""

    def __init__(self, ctx: JobContext, applier: Applier) -> None:
        self._ctx = ctx
        self._applier = applier
        self._expected: Marker | Literal["any"] | None = "any"
        self._fits: pa.Schema | None = None

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse columns that differ from the last epoch's, if the target can't take them. Raises Fatal.

        A hand-made query may give each batch different columns, and preflight has checked only those of the first
        batch.
        """
        if schema != self._fits:
            for finding in self._applier.check(schema):
                if finding.severity == "error":
                    raise Fatal(f"sink {self._ctx.sink}: {finding.message}", next=finding.fix)
            self._fits = schema

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        """Judge by the marker alone: an epoch that it does not cover can still be applied."""
        marker = self._marker(epoch, committables)
        applied = not marker.must_apply(self._applier.last_applied(marker.job, marker.sink))
        return [AlreadyCommitted() if applied else Prepared() for _ in committables]

    def mark(self) -> Mark | None:
        self._expected = self._applier.last_applied(self._ctx.job, self._ctx.sink)
        return None if self._expected is None else self._expected.mark

    def put_birth(self) -> Mark:
        self._expected = self._applier.put_birth(self._marker(BIRTH))
        return self._expected.mark

    def trim_marks(self) -> None:
        """Do nothing, because a marker replaces the one before."""

    def _marker(self, epoch: int, committables: Sequence[Committable] = ()) -> Marker:
        return Marker.of(self._ctx, epoch, committables, self._expected)


class StagedCommitter(MarkerCommitter):
    """Apply a decided epoch's staged files, then drop them. The marker proves whether an epoch was already applied."""

    def __init__(self, ctx: JobContext, applier: Applier) -> None:
        super().__init__(ctx, applier)
        self._folder = path_of(ctx.staging)
        self._swept = False
        self._made = False

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        yield from self._check_folder()
        yield from self._applier.check(schema)

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        yield from self._check_folder()
        yield from self._applier.check_target()

    def _check_folder(self) -> Iterator[Finding]:
        if isinstance(self._folder, ObjectPath):
            yield from store_findings(self._folder, "staged rows", _STAGING_FIX, large=True)
            return
        with staging_errors(self._folder):
            place = next(place for place in (self._folder, *self._folder.absolute().parents) if place.exists())
            writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        if writable:
            yield from filter(None, [full_disk(place)])
        else:
            yield Finding("error", f"staging folder {self._folder} can't be written: {place}", _STAGING_FIX)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        if not self._made:
            with staging_errors(self._folder):
                make_folder(self._folder, self._ctx.file_mode)
            self._applier.confirm(self._ctx.job, self._ctx.sink)
            self._made = True
        self._applier.open_epoch(schema)
        self.check_columns(schema)
        stored = self._applier.last_applied(self._ctx.job, self._ctx.sink)
        self._marker(epoch).check_new(stored)
        return str(self._folder).encode()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        marker = self._marker(epoch, committables)
        stored = self._applier.last_applied(marker.job, marker.sink)
        if not marker.must_apply(stored):
            return self._settled(committables, applied=False)
        ordered = sorted(committables, key=lambda c: (c.txn.partition, c.txn.attempt))
        damage = self._damage(ordered)
        try:
            applied = not damage and self._applier.apply(marker, staged_batches(self._folder, ordered))
        except FileNotFoundError as gone:
            damage, applied = self._damage(ordered) or [Unknown(f"staged file {gone.filename} is gone")], False
        # Another driver may have applied the epoch, and dropped its files, since the marker was read.
        if damage and marker.must_apply(self._applier.last_applied(marker.job, marker.sink)):
            return [self._damaged(epoch, damage)] * len(committables)
        return self._settled(committables, applied=bool(applied))

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        standing = super().assess(epoch, committables)
        if Prepared() not in standing or not (damage := self._damage(committables)):
            return standing
        # Another driver may have applied the epoch, and dropped its files, since the marker was read.
        standing = super().assess(epoch, committables)
        return standing if Prepared() not in standing else [self._damaged(epoch, damage)] * len(committables)

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        with staging_errors(self._folder):
            return staged_blocks(self._folder, participant.ref)

    def _settled(self, committables: Sequence[Committable], *, applied: bool) -> Sequence[Outcome]:
        """Drop the staged files of an applied epoch, and return its outcomes."""
        if not applied:
            self._applier.confirm(self._ctx.job, self._ctx.sink)
        with staging_errors(self._folder):
            drop_staged(self._folder, committables)
        return [Committed() if applied else AlreadyCommitted() for _ in committables]

    def abort(self, undecided: Undecided) -> None:
        with staging_errors(self._folder):
            abort_staged(self._folder, [participant.ref for participant in undecided])

    def in_doubt(self) -> Iterable[InDoubt]:
        everywhere, self._swept = not self._swept, True  # once per driver run
        with staging_errors(self._folder):
            return list(staged_in_doubt(self._folder, self._ctx.job, self._ctx.sink, everywhere=everywhere))

    def close(self) -> None:
        self._applier.close()

    def _damaged(self, epoch: int, damage: Sequence[Lost | Unknown]) -> Lost | Unknown:
        """Return the outcome of an epoch that can't be applied. The marker was read again after the files.

        An epoch is applied as a whole or not at all, so one missing file loses all of it. That is proven if the marker
        is of an earlier epoch that the journal knows.
        """
        evidence = "; ".join(found.evidence for found in damage)
        known = isinstance(self._expected, Marker) and self._expected.epoch < epoch
        lost = known and all(isinstance(found, Lost) for found in damage)
        return Lost(evidence) if lost else Unknown(evidence)

    def _damage(self, committables: Sequence[Committable]) -> list[Lost | Unknown]:
        """Return the damage of the staged files: Lost for a missing file, Unknown for a changed one."""
        with staging_errors(self._folder):
            return [
                found for committable in committables if (found := damage_of(self._folder, committable)) is not None
            ]
