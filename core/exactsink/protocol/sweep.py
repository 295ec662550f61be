"""Abort what is proven undecided. Abort has no other caller."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from exactsink.contract import Committer, InDoubt, Undecided
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Decision, Log, undecided_before, undecided_losers
from exactsink.protocol.journal.records import Claim

__all__ = ["sweep_losers", "sweep_older"]


def sweep_older(
    committers: Mapping[str, Committer],
    log: Log,
    mine: Claim,
    events: Events,
    sweep_tokens: frozenset[str] = frozenset(),
) -> None:
    """Abort what older generations left undecided in any sink. Raises LineageError on another journal's work.

    An operator may have sweep_tokens tokens of other journals: their work goes too.
    """
    listed = {sink: list(committer.in_doubt()) for sink, committer in committers.items()}
    proven = {sink: undecided_before(log, mine, sink, found, sweep_tokens) for sink, found in listed.items()}
    for sink, undecided in proven.items():
        _abort(sink, committers[sink], listed[sink], undecided, events)


def sweep_losers(committers: Mapping[str, Committer], decision: Decision, mine: Claim, events: Events) -> None:
    """Abort my own generation's losing attempts: only between an epoch's commit and the next epoch's tasks."""
    for sink, committer in committers.items():
        listed = list(committer.in_doubt())
        _abort(sink, committer, listed, undecided_losers(decision, mine, sink, listed), events)


def _abort(sink: str, committer: Committer, listed: Sequence[InDoubt], undecided: Undecided, events: Events) -> None:
    if len(undecided):
        committer.abort(undecided)
        events.report("swept", sink=sink, participants=len(undecided))
    gone = {participant.ref for participant in undecided}
    ages = [p.age_seconds for p in listed if p.ref not in gone]
    known = [age for age in ages if age is not None]
    oldest = round(max(known, default=0.0), 3) if len(known) == len(ages) else None
    events.report("in_doubt", level=logging.DEBUG, sink=sink, participants=len(ages), oldest_age_seconds=oldest)
