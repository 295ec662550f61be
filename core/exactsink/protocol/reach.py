"""The sinks of a job that answer at a start, and the results of a start and of an epoch.

A driver needs all of them. An operator's recovery sets aside the sinks that don't answer. It commits the decision in
the others, and sweeps nowhere, because an unreachable sink's mark might prove that the journal is outdated. An Unknown
in one sink does not end another sink's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from exactsink.contract import ExactsinkError, Fenced, InDoubtError, Outcome, Refused

__all__ = ["EpochResult", "OutcomeUnknown", "Part", "Reach", "Start"]

T = TypeVar("T")


class OutcomeUnknown(InDoubtError):
    """A participant of the last decision is proven neither committed nor lost. An operator may record its outcome."""


_STOPPING = (InDoubtError, Refused, Fenced)
"""Errors that concern the whole job: no sink is set aside because of them."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part that an operator settles alone: these sinks of the last decision, and undecided work.

    `refs` are the undecided participants: pairs of a sink and the store's own name.
    """

    sinks: frozenset[str]
    refs: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Reach:
    """One start's view of the sinks. With `sets_aside`, `aside` holds the errors of the sinks that did not answer.

    A `part` limits which sinks and participants are committed and swept. Every sink that answers is compared all the
    same.
    """

    sets_aside: bool = False
    part: Part | None = None
    aside: dict[str, Exception] = field(default_factory=dict)

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the names that are not set aside."""
        return [name for name in names if name not in self.aside]

    def commits(self, sink: str) -> bool:
        return self.part is None or sink in self.part.sinks

    def sweeps(self, sink: str, ref: str) -> bool:
        return self.part is None or (sink, ref) in self.part.refs

    @contextmanager
    def asking(self, sink: str) -> Iterator[None]:
        """Call a sink in the body. Set it aside if it does not answer, or raise if all sinks must answer."""
        try:
            yield
        except Exception as error:
            if not self.may_set_aside(error):
                raise
            self.aside[sink] = error

    def may_set_aside(self, error: Exception) -> bool:
        if isinstance(error, _STOPPING) and not isinstance(error, OutcomeUnknown):
            return False
        return self.sets_aside and isinstance(error, ExactsinkError | OSError)

    def asked(self, names: Iterable[str], ask: Callable[[str], T]) -> dict[str, T]:
        """Call each sink that is not set aside, and return the answers."""
        found = {}
        for name in self.of(names):
            with self.asking(name):
                found[name] = ask(name)
        return found


@dataclass(frozen=True, slots=True)
class Start:
    """The work of a start, by sink: the outcome of each participant of the last decision, and how many were swept.

    `lost` counts lost participants. `held_back` sinks come after uncommitted ones; `aside` sinks did not answer.
    """

    lost: Mapping[str, int]
    outcomes: Mapping[str, Sequence[Outcome]]
    swept: Mapping[str, int]
    held_back: frozenset[str]
    aside: Mapping[str, Exception]


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The result of a batch. `skipped`: it was decided before. `rows` are the decided rows by sink."""

    epoch: int
    skipped: bool
    rows: Mapping[str, int]
