"""Reference stores with a defect in their marks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from exactsink.contract import Committable, Mark, Outcome
from tests.conformance.reference_store import ReferenceCommitter, transaction


class PutsBlindly(ReferenceCommitter):
    """Puts its birth in the place of another journal's."""

    def put_birth(self) -> Mark:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM marks WHERE job = ? AND sink = ?", (self.ctx.job, self.ctx.sink))
        return super().put_birth()


class SeesItsOwnOnly(ReferenceCommitter):
    """Sees no other journal's marks."""

    def mark(self) -> Mark | None:
        mark = super().mark()
        return mark if mark is not None and mark.lineage == self.ctx.lineage else None

    def put_birth(self) -> Mark:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM marks WHERE lineage != ?", (self.ctx.lineage,))
        return super().put_birth()


class ForgetsTheClaim(ReferenceCommitter):
    """Keeps the epoch only, not under which claim it was begun."""

    def mark(self) -> Mark | None:
        mark = super().mark()
        return mark and replace(mark, tokens=frozenset())


class MarksAfterwards(ReferenceCommitter):
    """Marks in a transaction of its own, after that of the rows."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        with transaction(self.path) as connection:
            for committable in committables:
                super().set_mark(connection, self.name(committable))
        return outcomes

    def set_mark(self, connection: sqlite3.Connection, name: str) -> None:
        """Wait for the other transaction."""


class MarksWhatItWasAskedFor(ReferenceCommitter):
    """Lets the mark go back to an older epoch that is committed again."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM marks WHERE epoch > ?", (epoch,))
            for committable in committables:
                self.set_mark(connection, self.name(committable))
        return outcomes


class TrimsAll(ReferenceCommitter):
    """Trims the highest mark, too."""

    def trim_marks(self) -> None:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM marks WHERE job = ? AND sink = ?", (self.ctx.job, self.ctx.sink))
