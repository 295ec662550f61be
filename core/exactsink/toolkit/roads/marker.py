"""The marker of a sink on one of the roads: which epoch its target has applied, and whether another may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from exactsink.contract.errors import LineageError, Retryable
from exactsink.contract.model import Committable, JobContext, Mark

__all__ = ["BIRTH", "Marker"]

BIRTH = -1
"""The epoch of a marker that only binds its target to a journal."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The epoch that a target last applied for (job, sink), written in the same transaction as the epoch's rows.

    `token` is that of the claim under which the epoch was begun, empty in a birth. A birth,
    which binds the target to a journal before its first epoch, has epoch -1. `complete` is False if a store without
    transactions has only begun to apply the epoch. `expected` is not persisted: it is the marker that was last compared
    with the journal before this one is applied, "any" if none was.
    """

    job: str
    sink: str
    lineage: str
    epoch: int
    generation: int
    token: str
    complete: bool = True
    expected: Marker | Literal["any"] | None = field(default="any", compare=False, repr=False)

    @classmethod
    def of(
        cls, ctx: JobContext, epoch: int, committables: Sequence[Committable], expected: Marker | Literal["any"] | None
    ) -> Marker:
        """Make an epoch's marker, with the token of the newest generation among the committables."""
        newest = max((c.txn for c in committables), key=lambda txn: txn.generation, default=None)
        generation, token = (newest.generation, newest.token) if newest is not None else (ctx.generation, "")
        return cls(ctx.job, ctx.sink, ctx.lineage, epoch, generation, token, expected=expected)

    @property
    def mark(self) -> Mark:
        """This marker as a mark of the contract."""
        if self.epoch == BIRTH:
            return Mark(self.lineage)
        tokens = frozenset([self.token] if self.token else [])
        return Mark(self.lineage, self.epoch, tokens, None if self.complete else 0)

    def must_apply(self, stored: Marker | None) -> bool:
        """Return whether this epoch must be applied, given the marker that the applying transaction has read.

        An older write never overwrites a newer one: a driver that was stalled finds its epoch applied. A marker of
        another journal raises LineageError. A marker other than the expected one raises Retryable, so that it is read
        again.
        """
        approved = self.expected == stored
        if stored is not None:
            if stored.lineage != self.lineage and not (approved and stored.epoch < self.epoch):
                raise _foreign_marker(self, stored)
            if (stored.epoch, stored.complete) >= (self.epoch, True):
                return False
        if not approved and self.expected != "any":
            raise Retryable(
                f"sink {self.sink}: the target's marker is not the one that was read before",
                why=f"it was {self.expected}, and is {stored}",
                next="start the job again: it reads the marker again",
            )
        return True

    def check_new(self, stored: Marker | None) -> None:
        """Raise LineageError unless this epoch, which is about to be opened, is higher than the target's marker."""
        if not self.must_apply(stored):
            raise LineageError(
                f"sink {self.sink}: the target already holds epoch {self.epoch}",
                why="its marker is ahead of the journal, so the journal is an older copy; rows would be skipped",
                next="restore the newest journal, or give this job another name and a new checkpoint",
            )


def _foreign_marker(mine: Marker, stored: Marker) -> LineageError:
    """Refuse a target with the marker of another journal: its epochs would be skipped or repeated silently."""
    return LineageError(
        f"sink {mine.sink}: the target was fed by another journal of job {mine.job}",
        why=f"its marker holds epoch {stored.epoch} of lineage {stored.lineage}, this journal's is {mine.lineage}",
        next="give this job another name and a new checkpoint, or restore the target's own journal",
    )
