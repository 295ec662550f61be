"""Ledgers with a defect in what they do beside the commit: opening, writing, listing, aborting."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from exactsink.contract import Committable, Fatal, InDoubt, JobContext, Retryable, Txn, Undecided
from tests.conformance.ledger import LedgerBackend, LedgerCommitter, LedgerWriter, NotingCommitter, transaction

__all__ = [
    "PublishesEarly",
    "LeavesOrphans",
    "OpensOnce",
    "DropsManyRows",
    "Reverses",
    "NeedsItsModule",
    "HidesOrphans",
    "ListsByPrefix",
    "AbortsEverything",
    "ListsOlderOnly",
    "LeavesALock",
]


class _PublishesEarly(LedgerWriter):
    def pre_commit(self) -> Committable:
        committable = super().pre_commit()
        LedgerCommitter(self.path, JobContext(self.txn.job, self.txn.sink, "")).commit(self.txn.epoch, [committable])
        return committable


class PublishesEarly(LedgerBackend):
    """Applies the rows at the vote."""

    writer_type = _PublishesEarly


class _LeavesOrphans(LedgerCommitter):
    def abort(self, undecided: Undecided) -> None:
        """Leave everything in place."""


class LeavesOrphans(LedgerBackend):
    """Aborts nothing."""

    committer_type = _LeavesOrphans


class _OpensOnce(NotingCommitter):
    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        name = f"opened {self.ctx.job} {self.ctx.sink} {epoch}"
        if self.note(name) is not None:
            raise Fatal(f"epoch {epoch} is open")
        self.take_note(name, epoch)
        return super().open_epoch(epoch, schema, participants)


class OpensOnce(LedgerBackend):
    """Can't open an epoch again."""

    committer_type = _OpensOnce


class _DropsManyRows(LedgerWriter):
    def pre_commit(self) -> Committable:
        dropped, self.ids = self.ids[20_000:], self.ids[:20_000]
        kept = super().pre_commit()
        return Committable(kept.txn, kept.rows + len(dropped), kept.payload, kept.version, kept.deadline)


class DropsManyRows(LedgerBackend):
    """Writes no more than so many rows, and counts all of them."""

    writer_type = _DropsManyRows


class _Reverses(LedgerWriter):
    def pre_commit(self) -> Committable:
        self.ids.reverse()
        return super().pre_commit()


class Reverses(LedgerBackend):
    """Turns the order of a partition's rows around."""

    writer_type = _Reverses


OPENED: set[str] = set()


class _NeedsItsModule(LedgerCommitter):
    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        OPENED.add(self.path)
        return super().open_epoch(epoch, schema, participants)


class NeedsItsModule(LedgerBackend):
    """Leaves in its module, for forks of the driver alone, what writers need."""

    committer_type = _NeedsItsModule

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> LedgerWriter:
        if self.options.path not in OPENED:
            raise Fatal("no epoch was opened")
        return self.writer_type(self.options.path, txn, self.options.timeout_seconds)


class _HidesOrphans(LedgerCommitter):
    def in_doubt(self) -> Iterable[InDoubt]:
        return []


class HidesOrphans(LedgerBackend):
    """Lists nothing."""

    committer_type = _HidesOrphans


class _ListsByPrefix(LedgerCommitter):
    def in_doubt(self) -> Iterable[InDoubt]:
        txns = [Txn.parse(name) for name in self.names() if name.startswith(self.ctx.job)]
        return [InDoubt.of(txn) for txn in txns if txn is not None]


class ListsByPrefix(LedgerBackend):
    """Lists what begins with the job's name."""

    committer_type = _ListsByPrefix


class _AbortsEverything(LedgerCommitter):
    def abort(self, undecided: Undecided) -> None:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM work WHERE state IN ('begun', 'prepared')")


class AbortsEverything(LedgerBackend):
    """Aborts all there is, not what it was reported to."""

    committer_type = _AbortsEverything


class _ListsOlderOnly(LedgerCommitter):
    def in_doubt(self) -> Iterable[InDoubt]:
        return [participant for participant in super().in_doubt() if participant.generation <= self.ctx.generation]


class ListsOlderOnly(LedgerBackend):
    """Hides what a later generation began."""

    committer_type = _ListsOlderOnly


class _LeavesALock(NotingCommitter):
    def abort(self, undecided: Undecided) -> None:
        if self.note("sweeping") is not None:
            raise Retryable("somebody else is sweeping")
        self.take_note("sweeping", 1)
        super().abort(undecided)
        self.drop_note("sweeping")


class LeavesALock(LedgerBackend):
    """Locks its sweep with a note, which stays when it dies."""

    committer_type = _LeavesALock
