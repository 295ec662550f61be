"""The result of a recovery, or of a planned one: sink by sink, and the work that is left after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exactsink.contract import (
    AlreadyCommitted,
    Committed,
    ExactsinkError,
    Fatal,
    Lost,
    Outcome,
    Retryable,
    Unknown,
)
from exactsink.operate.refusals import votes_lost
from exactsink.protocol.commit import give_up
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Settled
from exactsink.protocol.reach import OutcomeUnknown, Part, Start

__all__ = ["Recovery"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """The outcome of each sink for the last decided epoch, None if none is decided. `aside` sinks did not answer.

    `give_up` is the command that gives up lost participants.
    """

    epoch: int | None
    settled: tuple[Settled, ...]
    aside: Mapping[str, Exception]
    give_up: str = ""
    planned: bool = False
    part: Part | None = None

    @classmethod
    def of(
        cls, log: Log, sinks: Iterable[str], start: Start, part: Part | None = None, *, planned: bool = False
    ) -> Recovery:
        """Make it from the result of a start, or of a `planned` one.

        For a `part`, name only the sinks that it waits for.
        """
        if part is not None:
            waits = start.aside if part.refs else ()
            named = part.sinks.union((sink for sink, _ in part.refs), waits)
            sinks = [name for name in sinks if name in named]
        settled, decision = tuple(_settled(name, start) for name in sinks), log.decision
        epoch = decision.epoch if decision is not None else None
        return cls(epoch, settled, start.aside, give_up(decision, start.outcomes), planned, part)

    def left(self) -> ExactsinkError | None:
        """Return the gravest problem that a person must solve now, None if everything is settled."""
        aside = {sink.sink: self.aside[sink.sink] for sink in self.settled if sink.sink in self.aside}
        for doubt in aside.values():
            if isinstance(doubt, OutcomeUnknown):
                return doubt
        lost = {sink.sink: sink.lost for sink in self.settled if sink.lost}
        unsettled = [sink.sink for sink in self.settled if sink.left and not sink.lost]
        why = "; ".join(f"{name}: {_cause(error)}" for name, error in aside.items())
        if lost:
            return votes_lost(lost, self.give_up, why)
        if not aside:
            return None
        later = all(isinstance(error, Retryable | OSError) for error in aside.values())
        fatal = [one for one in aside.values() if isinstance(one, ExactsinkError) and not isinstance(one, Retryable)]
        first = "; ".join(dict.fromkeys(error.next for error in fatal if error.next))
        others = f"the other sinks {'would be' if self.planned else 'are'} committed, and " if self.part is None else ""
        return (Retryable if later else Fatal)(
            f"not settled: {', '.join(unsettled)}; {others}nothing is aborted until all sinks answer",
            why=why,
            next=(f"{first}; then " if first else f"once {', '.join(aside)} can be reached: ")
            + "`exactsink recover JOB.toml`, or `exactsink run JOB.toml`",
        )


def _settled(name: str, start: Start) -> Settled:
    outcomes = start.outcomes.get(name, ())
    expired = 0 if name in start.aside else _count(outcomes, Unknown)  # for an epoch that the source has done
    return Settled(
        name,
        committed=_count(outcomes, Committed),
        stood=_count(outcomes, AlreadyCommitted) + expired,
        lost=start.lost.get(name, 0),
        swept=start.swept.get(name, 0),
        left=_left(name, start, outcomes),
    )


def _left(name: str, start: Start, outcomes: Sequence[Outcome]) -> str:
    if (error := start.aside.get(name)) is not None:
        return _cause(error)
    if name in start.held_back:
        return "it comes after a sink that is not committed"
    if _count(outcomes, Lost):
        return "only the job has the lost rows"
    return ""


def _count(outcomes: Sequence[Outcome], kind: type) -> int:
    return sum(isinstance(outcome, kind) for outcome in outcomes)


def _cause(error: Exception) -> str:
    if isinstance(error, ExactsinkError):
        return f"{error.what}: {error.why}" if error.why else error.what
    return repr(error)
