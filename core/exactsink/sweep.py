"""Abort what is proven undecided. Abort has no other caller."""

from __future__ import annotations

from collections.abc import Mapping

from exactsink.backend import Committer
from exactsink.events import Events
from exactsink.journal.log import Decision, Log, undecided_before, undecided_losers
from exactsink.journal.records import Claim
from exactsink.model import Undecided

__all__ = ["sweep_losers", "sweep_older"]


def sweep_older(committers: Mapping[str, Committer], log: Log, mine: Claim, events: Events) -> None:
    """Abort what older generations left undecided in any sink. Raises LineageError on another journal's work."""
    proven = {sink: undecided_before(log, mine, sink, committer.in_doubt()) for sink, committer in committers.items()}
    for sink, undecided in proven.items():
        _abort(sink, committers[sink], undecided, events)


def sweep_losers(committers: Mapping[str, Committer], decision: Decision, mine: Claim, events: Events) -> None:
    """Abort my own generation's losing attempts: only between an epoch's commit and the next epoch's tasks."""
    for sink, committer in committers.items():
        _abort(sink, committer, undecided_losers(decision, mine, sink, committer.in_doubt()), events)


def _abort(sink: str, committer: Committer, undecided: Undecided, events: Events) -> None:
    if len(undecided):
        committer.abort(undecided)
        events.tell("swept", sink=sink, participants=len(undecided))
