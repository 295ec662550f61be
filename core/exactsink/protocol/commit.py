"""Commit a decision: every sink, in parallel or in the order of `after`, until each participant has a final outcome."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committer,
    ExactsinkError,
    InDoubtError,
    Lost,
    Outcome,
    Retryable,
    Unknown,
)
from exactsink.protocol.checked import of_sink
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Decision
from exactsink.protocol.reach import OutcomeUnknown, Reach

__all__ = [
    "CommitCalls",
    "CommitResult",
    "Parallel",
    "Retry",
    "SinkCommit",
    "all_before",
    "give_up",
    "in_doubt",
    "in_threads",
    "resolved_by",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """The result of one sink's commit: an outcome per committable, or the error that ended it."""

    sink: str
    committables: Sequence[Committable]
    outcomes: Sequence[Outcome] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a decision: lost committables by sink, sinks that wait for others, and every outcome."""

    lost: Mapping[str, Sequence[Committable]]
    held_back: frozenset[str] = frozenset()
    outcomes: Mapping[str, Sequence[Outcome]] = field(default_factory=dict)


Parallel = Callable[[Sequence[Callable[[], SinkCommit]]], Sequence[SinkCommit]]
"""Run calls side by side, and return their results in order."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a commit is tried before the driver gives up, and the pause between tries.

    The next driver continues.
    """

    attempts: int
    wait: Callable[[int], None]


def in_threads(calls: Sequence[Callable[[], SinkCommit]]) -> Sequence[SinkCommit]:
    """Run each call in its own thread; run a single call in this thread."""
    if len(calls) < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(max_workers=len(calls), thread_name_prefix="exactsink-commit") as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@dataclass(frozen=True, slots=True)
class CommitCalls:
    """Commit a decision, sink by sink, each until it has an outcome.

    `check_mark(sink)` compares the sink's mark with the journal before each try, and raises if they differ.
    `possible(sink, outcomes)` compares the mark with the losses that were found. It turns a loss that the mark refutes
    into Unknown. `resolved` is an operator's outcome for participants in doubt, by sink and ref: `committed` or `lost`.
    `before` names the sinks that must be committed before a sink is tried.
    """

    events: Events
    retry: Retry
    check_mark: Callable[[str], None] = lambda sink: None
    resolved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    before: Mapping[str, frozenset[str]] = field(default_factory=dict)
    possible: Callable[[str, Sequence[Outcome]], Sequence[Outcome]] = lambda sink, outcomes: outcomes

    def commit(
        self,
        decision: Decision,
        committers: Mapping[str, Committer],
        parallel: Parallel,
        reach: Reach | None = None,
        *,
        source_done: bool = False,
    ) -> CommitResult:
        """Commit every sink in `committers` that is not set aside, and return the lost committables. Idempotent.

        Every sink gets its turn before an error is raised, unless it comes after a sink that is not committed.
        Raises InDoubtError for an Unknown, otherwise the gravest error of a sink that is not set aside. `source_done`
        says that the source has recorded the epoch as done. That proves that every participant was committed once, so
        an Unknown then means that the evidence has expired, not that a row is in doubt.
        """
        reach = reach or Reach()
        names = [name for name in reach.of(committers) if name in decision.sinks]
        before = {name: self.before.get(name, frozenset()) for name in names}
        results: list[SinkCommit] = []
        undone = {name for name in reach.aside if decision.committables(name)}
        held_back: set[str] = set()
        for wave in _waves(before):
            waiting = {name: firsts for name in wave if (firsts := before[name] & undone)}
            for name, firsts in waiting.items():
                fields = {"sink": name, "after": ", ".join(sorted(firsts))}
                self.events.report("commit_held_back", epoch=decision.epoch, level=logging.WARNING, **fields)
            held_back.update(waiting)
            calls = [partial(self._sink, name, committers[name], decision) for name in wave if name not in waiting]
            done = parallel(calls)
            undone.update(result.sink for result in done if not _is_committed(result, source_done=source_done))
            results += done
        lost = self._lost(decision, results, reach, source_done=source_done)
        return CommitResult(lost, frozenset(held_back), {result.sink: result.outcomes for result in results})

    def _lost(
        self, decision: Decision, results: Sequence[SinkCommit], reach: Reach, *, source_done: bool
    ) -> Mapping[str, Sequence[Committable]]:
        """Return the lost committables, by sink. Raises the gravest error."""
        errors = {result.sink: result.error for result in results if result.error is not None}
        doubts = {r.sink: in_doubt(decision.epoch, r.sink, r.committables, r.outcomes) for r in results}
        if not source_done:
            errors |= {sink: doubt for sink, doubt in doubts.items() if doubt is not None}
        reach.aside.update({sink: error for sink, error in errors.items() if reach.may_set_aside(error)})
        if raised := {error: sink for sink, error in errors.items() if sink not in reach.aside}:
            gravest = max(raised, key=_gravity)
            raise of_sink(raised[gravest], gravest) if isinstance(gravest, Retryable) else gravest
        lost = {}
        for result in (result for result in results if result.sink not in reach.aside):
            if (doubt := doubts[result.sink]) is not None:
                fields = {"sink": result.sink, "evidence": doubt.why}
                self.events.report("evidence_expired", epoch=decision.epoch, level=logging.WARNING, **fields)
            if gone := _lost(result, decision, self.events):
                lost[result.sink] = gone
        return lost

    def _sink(self, name: str, committer: Committer, decision: Decision) -> SinkCommit:
        committables = decision.committables(name)
        try:
            with self.events.point(f"commit:{name}", decision.epoch):
                outcomes = self._outcomes(name, committer, decision.epoch, committables) if committables else ()
        except Exception as error:
            return SinkCommit(name, committables, error=error)
        return SinkCommit(name, committables, outcomes)

    def _outcomes(
        self, name: str, committer: Committer, epoch: int, committables: Sequence[Committable]
    ) -> Sequence[Outcome]:
        for attempt in range(self.retry.attempts):
            try:
                self.check_mark(name)
                found = self.possible(name, committer.commit(epoch, committables))
                if not (words := self.resolved.get(name)):
                    return found
                said = [resolved_by(words.get(c.ref), one) for c, one in zip(committables, found, strict=True)]
                return self.possible(name, said)  # an operator can't declare visible rows lost
            except Retryable as error:
                if attempt + 1 == self.retry.attempts:
                    raise
                fields = {"sink": name, "attempt": attempt + 1, "error": str(error).partition("\n  next: ")[0]}
                self.events.report("commit_retried", epoch=epoch, level=logging.WARNING, **fields)
                self.retry.wait(attempt)
        raise AssertionError("a commit is tried at least once")


def resolved_by(word: str | None, found: T) -> T | AlreadyCommitted | Lost:
    """Return an operator's outcome in place of an Unknown; otherwise the outcome that was found."""
    if word is None or not isinstance(found, Unknown):
        return found
    return AlreadyCommitted() if word == "committed" else Lost(f"an operator resolved it as lost: {found.evidence}")


def all_before(after: Mapping[str, Sequence[str]]) -> Mapping[str, frozenset[str]]:
    """Return for each sink all sinks that come before it, directly or through others.

    In a circle a sink is one of them.
    """
    return {name: frozenset(_on_the_way(name, after)) for name in after}


def _on_the_way(name: str, after: Mapping[str, Sequence[str]]) -> set[str]:
    found = set(after[name])
    while more := {first for one in found for first in after.get(one, ())} - found:
        found |= more
    return found


def _waves(before: Mapping[str, frozenset[str]]) -> Iterator[Sequence[str]]:
    """Cut sinks into groups, each after all sinks that its members come after. Names of other sinks are ignored."""
    left = set(before)
    while left:
        wave = [name for name in before if name in left and not before[name] & left]
        if not wave:
            raise ValueError(f"sinks {', '.join(sorted(left))} come after each other in a circle")
        yield wave
        left.difference_update(wave)


def _is_committed(result: SinkCommit, *, source_done: bool) -> bool:
    open_outcomes = (Lost,) if source_done else (Lost, Unknown)
    return result.error is None and not any(isinstance(outcome, open_outcomes) for outcome in result.outcomes)


def _gravity(error: Exception) -> int:
    """Rank errors by how much a person must do about them."""
    if isinstance(error, InDoubtError):
        return 4
    if not isinstance(error, ExactsinkError):
        return 3
    return 1 if isinstance(error, Retryable) else 2


def in_doubt(epoch: int, sink: str, votes: Sequence[Committable], found: Sequence[object]) -> OutcomeUnknown | None:
    """Return the error for participants that are proven neither committed nor lost; None if there are none.

    Its command names one participant, because one may have been committed and another not.
    """
    unknown = [(c.ref, one.evidence) for c, one in zip(votes, found, strict=False) if isinstance(one, Unknown)]
    if not unknown:
        return None
    (ref, evidence), *others = unknown
    each = f"; then {len(others)} more, each by itself" if others else ""
    return OutcomeUnknown(
        f"epoch {epoch} is decided, and {len(unknown)} participants of sink {sink} are in doubt",
        why=evidence,
        next="restore the parts that the evidence names, then start the job again; or look into the target, and record "
        f"the outcome: exactsink indoubt resolve JOB.toml --epoch {epoch} --sink {sink} --as committed --reason 'TEXT'"
        f" --ref {shlex.quote(ref)} (or --as lost, and the job writes it again){each}",
    )


def give_up(decision: Decision | None, found: Mapping[str, Sequence[object]]) -> str:
    """Return the command that gives up the first sink's lost participants; empty if none is lost. `found` is by sink.

    A store that commits an epoch as a whole finds all its participants lost if one is missing. Then the evidence names
    the missing ones, and so does the command: without `--ref` it would also give up the others.
    """
    for sink, outcomes in found.items():
        votes = decision.committables(sink) if decision is not None else ()
        lost = [(c.txn.epoch, c.ref, one) for c, one in zip(votes, outcomes, strict=False) if isinstance(one, Lost)]
        named = [ref for _, ref, one in lost if ref in one.evidence]
        words = "".join(f" --ref {shlex.quote(ref)}" for ref in named if len(named) < len(lost))
        if lost:
            return (
                f"exactsink indoubt resolve JOB.toml --epoch {lost[0][0]} --sink {sink} --as given-up "
                f"--reason 'TEXT'{words}"
            )
    return ""


def _lost(result: SinkCommit, decision: Decision, events: Events) -> Sequence[Committable]:
    found = zip(result.committables, result.outcomes, strict=True)
    gone = [(vote, one) for vote, one in found if isinstance(one, Lost)]
    for vote, one in gone:
        fields = {"sink": result.sink, "txn": vote.txn.id, "evidence": one.evidence}
        events.report("vote_lost", epoch=decision.epoch, level=logging.WARNING, **fields)
    return [vote for vote, _ in gone]
