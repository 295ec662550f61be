"""Which of a job's sinks answer at a start, and the result in each.

A driver needs all of them. An operator's recovery sets those aside that don't answer: it commits the decision in the
others, and sweeps nowhere, as only the mark of a sink that was not seen may show that the journal went back. What is
unknown in one sink ends no other's part, either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from exactsink.contract import ExactsinkError, Fenced, InDoubtError, Outcome, Refused

__all__ = ["OutcomeUnknown", "Part", "Reach", "Start"]

T = TypeVar("T")


class OutcomeUnknown(InDoubtError):
    """A participant of the last decision is neither proven committed nor proven lost: a person may say which it is."""


_STOPPING = (InDoubtError, Refused, Fenced)
"""What a sink's answer says of the whole job: no sink is set aside for it."""


@dataclass(frozen=True, slots=True)
class Part:
    """What an operator settles alone: these sinks' part of the last decision, and these undecided participants.

    `refs` are pairs of a sink and the store's own name.
    """

    sinks: frozenset[str]
    refs: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Reach:
    """One start's view of the sinks: with `sets_aside`, `aside` holds the errors of those that gave no answer.

    A `part` limits what is committed and swept; every sink that answers is compared all the same.
    """

    sets_aside: bool = False
    part: Part | None = None
    aside: dict[str, Exception] = field(default_factory=dict)

    def of(self, names: Iterable[str]) -> list[str]:
        """Return those that are not set aside."""
        return [name for name in names if name not in self.aside]

    def commits(self, sink: str) -> bool:
        return self.part is None or sink in self.part.sinks

    def sweeps(self, sink: str, ref: str) -> bool:
        return self.part is None or (sink, ref) in self.part.refs

    @contextmanager
    def asking(self, sink: str) -> Iterator[None]:
        """Ask a sink in the body; set it aside if it does not answer, or raise where all have to."""
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
        """Ask each sink that is not set aside; return the answers of those that gave one."""
        found = {}
        for name in self.of(names):
            with self.asking(name):
                found[name] = ask(name)
        return found


@dataclass(frozen=True, slots=True)
class Start:
    """What a start did, by sink: the outcome of each participant of the last decision, and how many were swept.

    `lost` counts votes that are lost. `held_back` come after sinks that are not committed; `aside` gave no answer.
    """

    lost: Mapping[str, int]
    outcomes: Mapping[str, Sequence[Outcome]]
    swept: Mapping[str, int]
    held_back: frozenset[str]
    aside: Mapping[str, Exception]
