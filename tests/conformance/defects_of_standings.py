"""Ledgers whose `assess` has a defect."""

from __future__ import annotations

from collections.abc import Sequence

from exactsink.contract import AlreadyCommitted, Committable, Committed, Committer, Lost, Prepared, Standing, Unknown
from tests.conformance.reference_store import ReferenceCommitter, transaction


class CommitsToKnow(ReferenceCommitter):
    """Commits to find out what a commit would answer."""

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        outcomes = self.commit(epoch, committables)
        return [Prepared() if isinstance(outcome, Committed) else outcome for outcome in outcomes]


class SeesAllLost(ReferenceCommitter):
    """Says Lost of all, also of what is prepared, when one is lost."""

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        found = super().assess(epoch, committables)
        lost = [one for one in found if isinstance(one, Lost)]
        return [lost[0]] * len(found) if lost else found


class SeesAllPrepared(ReferenceCommitter):
    """Says Prepared of what is committed."""

    def standing(self, name: str) -> Standing:
        found = super().standing(name)
        return Prepared() if found == AlreadyCommitted() else found


class LooksForEvidenceFirst(ReferenceCommitter):
    """Looks for the proof of a commit first, and then whether it is prepared."""

    def standing(self, name: str) -> Standing:
        if super().standing(name) == AlreadyCommitted():
            return AlreadyCommitted()
        return Prepared() if name in self.names() else Lost(f"{name} is not prepared")


class LocksToLook(ReferenceCommitter):
    """Looks under the lock that a commit needs."""

    def standing(self, name: str) -> Standing:
        with transaction(self.path):
            return super().standing(name)


class Inherits(ReferenceCommitter):
    """Leaves `assess` to the contract: right where the mark proves what is committed."""

    assess = Committer.assess


class NeverKnows(ReferenceCommitter):
    """Says Unknown of what it could know."""

    def standing(self, name: str) -> Standing:
        found = super().standing(name)
        return Unknown("it is lost, or is not") if isinstance(found, Lost) else found
