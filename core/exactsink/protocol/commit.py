"""Commit a decision: every sink, in parallel or after those that it comes after, until each participant has a final
answer."""

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
    """The result of a decision, by sink: what is lost, the sinks that are held back by others, and every outcome."""

    lost: Mapping[str, Sequence[Committable]]
    held_back: frozenset[str] = frozenset()
    outcomes: Mapping[str, Sequence[Outcome]] = field(default_factory=dict)


Parallel = Callable[[Sequence[Callable[[], SinkCommit]]], Sequence[SinkCommit]]
"""Run calls side by side and give their results in order."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a commit is tried before the driver gives up (the next one goes on), and the pause between."""

    attempts: int
    wait: Callable[[int], None]


def in_threads(calls: Sequence[Callable[[], SinkCommit]]) -> Sequence[SinkCommit]:
    """Run each call in a thread of its own; a single one here."""
    if len(calls) < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(max_workers=len(calls), thread_name_prefix="exactsink-commit") as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@dataclass(frozen=True, slots=True)
class CommitCalls:
    """How a decision is committed: sink by sink, each until it has an answer.

    `check_mark(sink)` holds the sink's mark against the journal before each try, and raises where the two differ.
    `possible(sink, outcomes)` holds it against losses that were found: those that it contradicts are unknown.
    `resolved` is an operator's word on participants in doubt, by sink and ref: `committed` or `lost`. `before` names
    all sinks that are committed before a sink: it isn't tried until they are.
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
        """Commit every sink in `committers` that is not set aside, and return what is lost.

        All sinks get their turn before an error is raised, but for those that come after one that is not committed:
        InDoubtError for an Unknown, else the gravest that a sink met and is not set aside for. `source_done` says that
        the source has recorded the epoch as done, which proves that all of it was committed once: an Unknown is then
        evidence that has expired, not a row in doubt.
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
        """Return the committables that are lost, by sink. Raises the gravest error."""
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
                fields = {"sink": name, "attempt": attempt + 1, "error": error.what}
                self.events.report("commit_retried", epoch=epoch, level=logging.WARNING, **fields)
                self.retry.wait(attempt)
        raise AssertionError("a commit is tried at least once")


def resolved_by(word: str | None, found: T) -> T | AlreadyCommitted | Lost:
    """Return an operator's word in place of an Unknown; else what was found."""
    if word is None or not isinstance(found, Unknown):
        return found
    return AlreadyCommitted() if word == "committed" else Lost(f"an operator resolved it as lost: {found.evidence}")


def all_before(after: Mapping[str, Sequence[str]]) -> Mapping[str, frozenset[str]]:
    """Return for each sink those that it comes after, by way of others, too; itself among them, if that is a circle."""
    return {name: frozenset(_on_the_way(name, after)) for name in after}


def _on_the_way(name: str, after: Mapping[str, Sequence[str]]) -> set[str]:
    found = set(after[name])
    while more := {first for one in found for first in after.get(one, ())} - found:
        found |= more
    return found


def _waves(before: Mapping[str, frozenset[str]]) -> Iterator[Sequence[str]]:
    """Cut sinks into groups, each after all that its sinks come after; names that aren't sinks here don't count."""
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
    """Order errors by how much a person has to do about them."""
    if isinstance(error, InDoubtError):
        return 4
    if not isinstance(error, ExactsinkError):
        return 3
    return 1 if isinstance(error, Retryable) else 2


def in_doubt(epoch: int, sink: str, votes: Sequence[Committable], found: Sequence[object]) -> OutcomeUnknown | None:
    """Return the error of participants that are neither proven committed nor proven lost; None where none is.

    Of several it names one for a person's word: one may have been committed, and another not.
    """
    unknown = [(c.ref, one.evidence) for c, one in zip(votes, found, strict=False) if isinstance(one, Unknown)]
    if not unknown:
        return None
    (ref, evidence), *others = unknown
    only, each = (f" --ref {shlex.quote(ref)}", f"; then {len(others)} more, each by itself") if others else ("", "")
    return OutcomeUnknown(
        f"epoch {epoch} is decided, and {len(unknown)} participants of sink {sink} are in doubt",
        why=evidence,
        next="restore the parts that the evidence names, then start the job again; or look into the target, and record "
        f"the outcome: exactsink indoubt resolve JOB.toml --epoch {epoch} --sink {sink} --as committed --reason 'TEXT'"
        f"{only} (or --as lost, and the job writes it again){each}",
    )


def _lost(result: SinkCommit, decision: Decision, events: Events) -> Sequence[Committable]:
    found = zip(result.committables, result.outcomes, strict=True)
    gone = [(vote, one) for vote, one in found if isinstance(one, Lost)]
    for vote, one in gone:
        fields = {"sink": result.sink, "txn": vote.txn.id, "evidence": one.evidence}
        events.report("vote_lost", epoch=decision.epoch, level=logging.WARNING, **fields)
    return [vote for vote, _ in gone]
