"""Whether a job needs a person, or a start: from how its sinks stand, and whether a driver is at work."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from exactsink.contract import ExactsinkError, ForeignError, InDoubtError, LineageError, Unknown
from exactsink.operate.actions import LIVE_SECONDS
from exactsink.operate.views import SinkView
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.log import Log

__all__ = ["Commands", "Health", "health_of", "is_live"]


@dataclass(frozen=True, slots=True)
class Commands:
    """How the commands are called for one history: for the next one that a message names."""

    path: str
    run: str | None = None

    @property
    def start(self) -> str:
        """What writes again what was lost: only the job has the rows."""
        return (
            f"exactsink run {shlex.quote(self.path)}"
            if self.run is None
            else f"call write again, with run={self.run!r}"
        )

    def of(self, command: str) -> str:
        """Return a command for this history."""
        run = "" if self.run is None else f" --run {shlex.quote(self.run)}"
        return f"exactsink {command} {shlex.quote(self.path)}{run}"


@dataclass(frozen=True, slots=True)
class Health:
    """In a word: `no start yet`, `proven`, `at work`, `in doubt`, `not asked`, `foreign work`, `another history`.

    `refusal` is what stands in the way, with the next command; None where neither a person nor a start is needed.
    """

    word: str
    refusal: ExactsinkError | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.refusal is None else self.refusal.exit_code


def is_live(state: State | None) -> bool:
    """Return whether a driver may be at work: it has not ended, and its heartbeat is young."""
    return state is not None and time.time() - state.heartbeat < LIVE_SECONDS


def health_of(log: Log, views: Sequence[SinkView], state: State | None, commands: Commands) -> Health:
    """Judge how the sinks stand. Work of a driver that lives is on its way, unless nobody can end it but a person."""
    if not log.claims and state is not None and state.generation:
        return Health("another history", _emptied(state))
    problems = [view.problem for view in views if view.problem is not None]
    for problem in problems:
        if isinstance(problem, LineageError):
            return Health("another history", problem)
    left = [view for view in views if not view.is_proven or view.problem is not None]
    live = is_live(state)
    if not live or any(_needs_a_person(view) for view in left):
        for worst in sorted(left, key=_gravity)[:1]:
            away = all(view.in_config and not view.asked for view in left)
            return Health("not asked" if away else "in doubt", _in_doubt(log, views, worst, commands))
    foreign = [view for view in views if view.holds("foreign")]
    if foreign:
        return Health("foreign work", _foreign(foreign, commands))
    return Health("no start yet" if not log.claims else "at work" if left and live else "proven")


def _needs_a_person(view: SinkView) -> bool:
    """Return whether a driver at work can't settle the sink by itself, as it can one whose store is away or slow."""
    away = view.in_config and not view.asked
    return bool(view.count("unknown")) or (view.problem is not None and not away)


def _gravity(view: SinkView) -> int:
    """Order what is open by how much a person has to do about it, the most first."""
    if view.problem is not None:
        return 0 if view.asked or not view.in_config else 2
    return 1 if view.count("unknown") else 3 if view.count("lost") else 5 if view.held_back_by else 4


def _in_doubt(log: Log, views: Sequence[SinkView], worst: SinkView, commands: Commands) -> InDoubtError:
    """Return how much is open in all, and of the gravest sink why, and what comes next."""
    decided = sum(len(view.committables) for view in views)
    left = decided - sum(view.count("committed") for view in views)
    epoch = log.decision.epoch if log.decision else None
    what = f"{left} of {decided} decided participants of epoch {epoch} are not proven committed"
    if worst.problem is not None:
        what = what if left else f"sink {worst.name} is not proven to be as it should"
        why = ": ".join(filter(None, (worst.problem.what, worst.problem.why)))
        return InDoubtError(what, why=why, next=worst.problem.next)
    for evidence in (standing.evidence for standing in worst.standings if isinstance(standing, Unknown)):
        word = f"{commands.of('indoubt resolve')} --epoch {epoch} --sink {worst.name} --as committed (or lost)"
        fix = f"bring back what the evidence names, then {commands.start}; or look into the target, and say: {word}"
        return InDoubtError(what, why=f"sink {worst.name}: {evidence}", next=fix)
    if worst.count("lost"):
        why = f"sink {worst.name} has lost {worst.count('lost')} of them, and only the job has their rows"
        word = f"{commands.of('indoubt resolve')} --epoch {epoch} --sink {worst.name} --as given-up"
        return InDoubtError(
            what, why=why, next=f"{commands.start} (it writes them again); where its source can't: {word}"
        )
    held = f" ({worst.name} waits for {', '.join(worst.held_back_by)})" if worst.held_back_by else ""
    then = commands.of("recover") if commands.run is not None else f"{commands.start}, or {commands.of('recover')}"
    return InDoubtError(what, why=f"no driver is at work on them{held}", next=then)


def _foreign(views: Sequence[SinkView], commands: Commands) -> ForeignError:
    tokens = {holding.participant.token for view in views for holding in view.held if holding.whose == "foreign"}
    sweep = " ".join(f"--sweep-token {token}" for token in sorted(tokens))
    return ForeignError(
        f"{', '.join(view.name for view in views)} hold participants of this job's name that are not this journal's",
        why="another journal uses the name, or this one went back in time, or was deleted: a start is refused",
        next="give one of the two jobs another name; or, once no such job runs any more, drop its work: "
        f"{commands.of('recover')} {sweep}",
    )


def _emptied(state: State) -> LineageError:
    return LineageError(
        "the journal is empty, and this job has run",
        why=f"its state says so: {state.driver} was generation {state.generation}. The journal was deleted; or it is "
        "in a database, and [job] name or journal has changed",
        next="bring the journal back, or the name; or `exactsink rebase`, which starts from what the targets hold",
    )
