"""The driver's side of a table: the mark and the files decide, whatever the format of the table is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Audit,
    Committable,
    Committer,
    Fatal,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Standing,
    Undecided,
    Unknown,
)
from exactsink.toolkit.payloads import check_own
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.storage import AnyPath, file_sha256
from exactsink.toolkit.tabular.waiting import damage, forget, remove_waiting, waiting

__all__ = ["TableCommitter", "TableFile"]


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file in a vote, and the proof of its bytes."""

    path: AnyPath
    size: int
    sha256: str


class TableCommitter(Committer):
    """Commit files by one entry of the table, which also holds the sink's mark.

    A subclass reads the table and adds the entry. A participant's files have its id in their names.
    """

    def __init__(self, ctx: JobContext, records: AnyPath) -> None:
        self._ctx, self._records = ctx, records
        self._held: Marker | Literal["any"] | None = "any"
        self._opened: tuple[pa.Schema, bytes] | None = None

    @abstractmethod
    def answering(self) -> AbstractContextManager[None]:
        """Turn errors of the table and of its storage into Retryable or Fatal."""

    @abstractmethod
    def stored(self, *, may_lack: bool = False) -> Marker | None:
        """Read the table's marker. Raises Fatal if the table is missing, unless it `may_lack`."""

    @abstractmethod
    def named(self) -> Collection[str]:
        """List the names of the table's files, without their folders."""

    @abstractmethod
    def voted(self, committable: Committable) -> Iterable[TableFile]:
        """Read a vote's files. Raises Fatal if it can't be read."""

    @abstractmethod
    def ticket(self, schema: pa.Schema) -> bytes:
        """Return the ticket for rows of these columns, from the table as it is now."""

    def row_rules(self, schema: pa.Schema) -> bytes:
        """Return the epoch's ticket, because it has the table's columns, against which tasks check rows."""
        if self._opened is not None and self._opened[0].equals(schema):
            return self._opened[1]
        with self.answering():
            return self.ticket(schema)

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        """Count the rows of the epochs' files that the table still names, by one listing of the table.

        If the table no longer names a file, it was rewritten or deleted, and the epoch can't be counted. `deep`
        compares each file's SHA-256 with the vote's.
        """
        with self.answering():
            named = self.named()
            return {epoch: self._audited(committables, named, deep) for epoch, committables in epochs.items()}

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        marker = self._marker(epoch, committables)
        with self.answering():
            pending = marker.must_apply(self.stored())
            damage = self._damage(epoch, committables) if pending else None
            if damage is not None:  # another driver may have committed since, and other writers replaced the files
                pending = marker.must_apply(self.stored())
        return [(damage or Prepared()) if pending else AlreadyCommitted()] * len(committables)

    def abort(self, undecided: Undecided) -> None:
        with self.answering():
            named = self.named() if len(undecided) else ()
            for participant in undecided:
                if any(f"{participant.ref}." in name for name in named):
                    what = f"the table names files of {participant.ref}, although it was never decided"
                    raise Fatal(what, next="find out who added them; exactsink changed nothing there")
                remove_waiting(self._records, participant.ref)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self.answering():
            return waiting(self._records, self._ctx.job, self._ctx.sink)

    def mark(self) -> Mark | None:
        with self.answering():
            self._held = self.stored(may_lack=True)
        return None if self._held is None else self._held.mark

    def _marker(self, epoch: int, committables: Sequence[Committable] = ()) -> Marker:
        check_own(self._ctx, committables)
        return Marker.of(self._ctx, epoch, committables, self._held)

    def _damage(self, epoch: int, committables: Sequence[Committable]) -> Lost | Unknown | None:
        below = isinstance(self._held, Marker) and self._held.epoch < epoch
        files = (file for committable in committables for file in self.voted(committable))
        return damage(((file.path, file.size) for file in files), below=below)

    def _settled(self, committables: Sequence[Committable], outcome: Outcome) -> Sequence[Outcome]:
        """Forget the records of an entry that is durable."""
        forget(self._records, [committable.ref for committable in committables])
        return [outcome] * len(committables)

    def _audited(self, committables: Sequence[Committable], named: Collection[str], deep: bool) -> Audit:
        for file in (file for committable in committables for file in self.voted(committable)):
            if file.path.name not in named:
                return Audit(None, f"{file.path.name} was rewritten or deleted")
            if deep and file_sha256(file.path) != file.sha256:
                return Audit(None, f"{file.path.name} is not the file that was voted for")
        return Audit(sum(each.rows for each in committables), "files that the table names")
