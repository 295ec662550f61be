"""Abort work that is proven undecided. Only the sweep calls abort."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from exactsink.contract import Committer, InDoubt, Undecided
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Log, knows_all, undecided_before, undecided_losers
from exactsink.protocol.journal.records import Claim
from exactsink.protocol.reach import Reach

__all__ = ["Sweep"]

_LONG_EPOCHS = 2
"""A participant in doubt for so many epochs is no longer in progress, so a person should look at it."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One driver's sweeps. It counts for how many epochs each participant is in doubt, and warns of long ones.

    `whole()` reads the driver's log back to its first claim, for work that no claim in the log has begun.
    """

    events: Events
    whole: Callable[[], Log]
    _epochs: dict[tuple[str, str], int] = field(default_factory=dict)

    def older(
        self,
        committers: Mapping[str, Committer],
        log: Log,
        mine: Claim,
        sweep_tokens: frozenset[str] = frozenset(),
        reach: Reach | None = None,
    ) -> Mapping[str, int]:
        """Abort the undecided work of older generations in every sink. Return the number by sink. Idempotent.

        Nothing is aborted while a sink is set aside: an outdated journal lacks decisions, and that sink's mark might
        prove it. Raises LineageError on another journal's work, even if only a part is swept. An operator may pass
        `sweep_tokens` of other journals; their work is aborted as well.
        """
        reach = reach or Reach()
        if reach.part is not None and not reach.part.refs:
            return {}
        listed = reach.asked(committers, lambda sink: list(committers[sink].in_doubt()))
        if reach.aside:
            return {}
        log = log if knows_all(log, chain.from_iterable(listed.values())) else self.whole()
        for sink, found in listed.items():
            undecided_before(log, mine, sink, found, sweep_tokens)
        meant = {sink: [p for p in found if reach.sweeps(sink, p.ref)] for sink, found in listed.items()}
        proven = {sink: undecided_before(log, mine, sink, found, sweep_tokens) for sink, found in meant.items()}
        aborted = reach.asked(proven, lambda sink: self._abort(sink, committers[sink], listed[sink], proven[sink]))
        return {sink: count for sink, count in aborted.items() if count}

    def losers(self, committers: Mapping[str, Committer], log: Log, mine: Claim) -> None:
        """Abort my own generation's losing attempts, and work of a fenced driver that began after my first sweep.

        Call it only between an epoch's commit and the next epoch's tasks. Idempotent.
        """
        for sink, committer in committers.items():
            listed = list(committer.in_doubt())
            log = log if knows_all(log, listed) else self.whole()
            self._abort(sink, committer, listed, undecided_losers(log, mine, sink, listed))

    def _abort(self, sink: str, committer: Committer, listed: Sequence[InDoubt], undecided: Undecided) -> int:
        if len(undecided):
            committer.abort(undecided)
            self.events.report("swept", sink=sink, participants=len(undecided))
        gone = {participant.ref for participant in undecided}
        left = [p for p in listed if p.ref not in gone]
        known = [p.age_seconds for p in left if p.age_seconds is not None]
        oldest = round(max(known, default=0.0), 3) if len(known) == len(left) else None
        self.events.report(
            "in_doubt", level=logging.DEBUG, sink=sink, participants=len(left), oldest_age_seconds=oldest
        )
        self._report_long(sink, left)
        return len(undecided)

    def _report_long(self, sink: str, left: Sequence[InDoubt]) -> None:
        """Warn, once, of each participant that has been in doubt for several epochs."""
        for gone in {key for key in self._epochs if key[0] == sink}.difference((sink, p.ref) for p in left):
            del self._epochs[gone]
        for participant in left:
            epochs = self._epochs[sink, participant.ref] = self._epochs.get((sink, participant.ref), 0) + 1
            if epochs == _LONG_EPOCHS + 1:
                named = participant.ref
                self.events.report("in_doubt_long", level=logging.WARNING, sink=sink, participant=named)
