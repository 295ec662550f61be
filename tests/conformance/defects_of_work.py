"""Reference stores with a defect in what they do beside the commit: opening, writing, listing, aborting."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from exactsink.contract import Committable, Fatal, InDoubt, JobContext, Retryable, Txn, Undecided
from tests.conformance.reference_store import NotingCommitter, ReferenceCommitter, ReferenceWriter, transaction


class PublishesEarly(ReferenceWriter):
    """Applies the rows at the vote."""

    def pre_commit(self) -> Committable:
        committable = super().pre_commit()
        ReferenceCommitter(self.path, JobContext(self.txn.job, self.txn.sink, "")).commit(self.txn.epoch, [committable])
        return committable


class LeavesOrphans(ReferenceCommitter):
    """Aborts nothing."""

    def abort(self, undecided: Undecided) -> None:
        """Leave everything in place."""


class OpensOnce(NotingCommitter):
    """Can't open an epoch again."""

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        name = f"opened {self.ctx.job} {self.ctx.sink} {epoch}"
        if self.note(name) is not None:
            raise Fatal(f"epoch {epoch} is open")
        self.take_note(name, epoch)
        return super().open_epoch(epoch, schema, participants)


class DropsManyRows(ReferenceWriter):
    """Writes no more than so many rows, and counts all of them."""

    def pre_commit(self) -> Committable:
        dropped, self.ids = self.ids[20_000:], self.ids[:20_000]
        kept = super().pre_commit()
        return Committable(kept.txn, kept.rows + len(dropped), kept.payload, kept.version, kept.deadline)


class Reverses(ReferenceWriter):
    """Turns the order of a partition's rows around."""

    def pre_commit(self) -> Committable:
        self.ids.reverse()
        return super().pre_commit()


OPENED: set[str] = set()


class _NeedsItsModule(ReferenceWriter):
    def __init__(self, path: str, txn: Txn, timeout: float) -> None:
        if path not in OPENED:
            raise Fatal("no epoch was opened")
        super().__init__(path, txn, timeout)


class NeedsItsModule(ReferenceCommitter):
    """Leaves in its module, for forks of the driver alone, what writers need."""

    writer_type = _NeedsItsModule

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        OPENED.add(self.path)
        return super().open_epoch(epoch, schema, participants)


class HidesOrphans(ReferenceCommitter):
    """Lists nothing."""

    def in_doubt(self) -> Iterable[InDoubt]:
        return []


class ListsByPrefix(ReferenceCommitter):
    """Lists what begins with the job's name."""

    def in_doubt(self) -> Iterable[InDoubt]:
        txns = [Txn.parse(name) for name in self.names() if name.startswith(self.ctx.job)]
        return [InDoubt.of(txn) for txn in txns if txn is not None]


class AbortsEverything(ReferenceCommitter):
    """Aborts all there is, not what it was given."""

    def abort(self, undecided: Undecided) -> None:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM work WHERE state IN ('begun', 'prepared')")


class ListsOlderOnly(ReferenceCommitter):
    """Hides what a later generation began."""

    def in_doubt(self) -> Iterable[InDoubt]:
        return [participant for participant in super().in_doubt() if participant.generation <= self.ctx.generation]


class LeavesALock(NotingCommitter):
    """Locks its sweep with a note, which stays when it dies."""

    def abort(self, undecided: Undecided) -> None:
        if self.note("sweeping") is not None:
            raise Retryable("somebody else is sweeping")
        self.take_note("sweeping", 1)
        super().abort(undecided)
        self.drop_note("sweeping")


class PassesBadRows(ReferenceCommitter):
    """Judges rows by another column than the writer."""

    def row_rules(self, schema: pa.Schema) -> bytes:
        return b"amount"


class JudgesByTheHour(NotingCommitter):
    """Gives another reason each time that it is asked for its rules."""

    def row_rules(self, schema: pa.Schema) -> bytes:
        asked = (self.note("rules asked for") or 0) + 1
        self.take_note("rules asked for", asked)
        return f"kind {asked}".encode()


class ForgetsItsRules(NotingCommitter):
    """Knows its rules once for an epoch only; later each row is good."""

    def row_rules(self, schema: pa.Schema) -> bytes:
        asked = (self.note("rules") or 0) + 1
        self.take_note("rules", asked)
        return b"kind" if asked <= 2 else b"id"
