"""The errors of an operator's commands on participants in doubt: why one is refused, or leaves some in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exactsink.contract import ConfigError, Fenced, InDoubt, InDoubtError, LineageError
from exactsink.observe.state import LIVE_SECONDS
from exactsink.operate.indoubt import Doubt

__all__ = ["GIVEN_UP", "Word", "check_old", "held_back", "is_foreign", "nothing_left", "votes_lost"]

GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True)
class Word:
    """An operator's outcome for a sink of an epoch.

    `committed` and `lost` are for participants that nothing proves, `given-up` is for proven lost ones. `refs` are the
    participants; without any, all that the outcome fits.
    """

    epoch: int
    sink: str
    outcome: str
    reason: str
    refs: frozenset[str] = frozenset()

    def is_on(self, ref: str, *, lost: bool) -> bool:
        """Return whether the outcome applies to a participant that is proven lost, or else unknown."""
        return lost == (self.outcome == GIVEN_UP) and (not self.refs or ref in self.refs)


def held_back(sink: str) -> InDoubtError:
    return InDoubtError(
        f"sink {sink} is held back: a sink that it comes after is not committed",
        next="`exactsink indoubt list JOB.toml` shows which, then commit that one first",
    )


def votes_lost(lost: Mapping[str, int], give_up: str, why: str = "") -> InDoubtError:
    """Return the error for participants that the store proves lost, by sink. `give_up` drops them."""
    return InDoubtError(
        f"{sum(lost.values())} decided participants of {', '.join(lost)} are lost, and only the job has their rows",
        why=why or "the store proves that no commit can complete them any more",
        next=f"start the job, which writes them again: `exactsink run JOB.toml`; or, if its source can't: {give_up}",
    )


def nothing_left(word: Word) -> ConfigError:
    kind = "proven lost" if word.outcome == GIVEN_UP else "neither proven committed nor proven lost"
    return ConfigError(
        f"nothing of epoch {word.epoch} in sink {word.sink} is {kind}",
        why="`committed` and `lost` are for a participant that nothing proves, "
        f"`{GIVEN_UP}` is for a participant that is proven lost; all others are committed",
        next="exactsink indoubt list JOB.toml",
    )


def is_foreign(doubt: Doubt) -> LineageError:
    return LineageError(
        f"{doubt.ref} is foreign: this journal has no claim of generation {doubt.generation}, token {doubt.token}",
        why="another driver, with another journal, may have decided it or may still do so",
        next=f"once you know that no such job runs: exactsink recover JOB.toml --ref {doubt.short} "
        f"--sweep-token {doubt.token} --reason 'TEXT'",
    )


def check_old(foreign: Sequence[InDoubt]) -> None:
    """Refuse foreign work that may have been begun recently, because nothing here fences its driver. Raises Fenced."""
    young = [p for p in foreign if p.age_seconds is None or p.age_seconds < LIVE_SECONDS]
    if young:
        age = "of unknown age" if young[0].age_seconds is None else f"{young[0].age_seconds:.0f} s old"
        raise Fenced(
            f"{young[0].ref} is {age}: its driver may be running",
            why="its journal is elsewhere, so nothing here can stop that driver",
            next=f"stop it, and wait until its work is {LIVE_SECONDS:.0f} s old; if it ended, repeat with --take-over",
        )
