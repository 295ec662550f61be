"""Whether a job needs a person, or a start: derived from the state of its sinks, and whether a driver is at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exactsink.contract import ExactsinkError, ForeignError, InDoubtError, LineageError
from exactsink.job.commands import Commands
from exactsink.observe.state import is_ahead, is_live, last_heard
from exactsink.operate.views import SinkView
from exactsink.protocol.commit import give_up, in_doubt
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.log import Log

__all__ = ["Health", "health_of"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state in a word: `no start yet`, `proven`, `at work`, `in doubt`, `not asked`, `undecided work`,
    `foreign work` or `another history`.

    `refusal` is the problem, with the next command; None if neither a person nor a start is needed.
    """

    word: str
    refusal: ExactsinkError | None = None


def health_of(
    log: Log,
    views: Sequence[SinkView],
    state: State | None,
    commands: Commands,
    checkpoint: LineageError | None = None,
) -> Health:
    """Judge the state of the sinks, and why the `checkpoint` does not follow the journal, if so.

    Work of a live driver is in progress, unless only a person can end it.
    """
    if not log.claims and state is not None and state.generation:
        return Health("another history", _emptied(state))
    for problem in (*(view.problem for view in views), checkpoint):
        if isinstance(problem, LineageError):
            return Health("another history", problem)
    left = [view for view in views if not view.is_proven or view.problem is not None]
    live = is_live(state)
    if not live or any(_needs_a_person(view) for view in left):
        for worst in sorted(left, key=_gravity)[:1]:
            away = all(view.in_config and not view.asked for view in left)
            return Health("not asked" if away else "in doubt", _in_doubt(log, views, worst, commands, state))
    foreign = [view for view in views if view.holds("foreign")]
    if foreign:
        return Health("foreign work", _foreign(foreign, commands))
    begun = [view for view in views if view.holds("undecided")]
    if begun and not live:
        return Health("undecided work", _undecided(begun, state, commands))
    return Health("no start yet" if not log.claims else "at work" if left and live else "proven")


def _needs_a_person(view: SinkView) -> bool:
    """Return whether only a person can settle the sink.

    A driver at work settles a sink with an unreachable or slow store.
    """
    away = view.in_config and not view.asked
    return bool(view.count("unknown")) or (view.problem is not None and not away)


def _gravity(view: SinkView) -> int:
    """Rank open work by how much a person must do about it, the most first."""
    if view.problem is not None:
        return 0 if view.asked or not view.in_config else 2
    return 1 if view.count("unknown") else 3 if view.count("lost") else 5 if view.held_back_by else 4


def _in_doubt(
    log: Log, views: Sequence[SinkView], worst: SinkView, commands: Commands, state: State | None
) -> InDoubtError:
    """Return the error with the number of open participants, the reason for the gravest sink, and the next command."""
    decided = sum(len(view.committables) for view in views)
    left = decided - sum(view.count("committed") for view in views)
    epoch = log.decision.epoch if log.decision else -1
    what = f"{left} of {decided} decided participants of epoch {epoch} are not proven committed"
    if worst.problem is not None:
        what = what if left else f"sink {worst.name} is not proven to match the journal"
        why = ": ".join(filter(None, (worst.problem.what, worst.problem.why)))
        return InDoubtError(what, why=why, next=worst.problem.next)
    if (doubt := in_doubt(epoch, worst.name, worst.committables, worst.standings)) is not None:
        return InDoubtError(what, why=f"sink {worst.name}: {doubt.why}", next=commands.typed(doubt.next))
    if worst.count("lost"):
        why = f"sink {worst.name} has lost {worst.count('lost')} of them, and only the job has their rows"
        word = commands.typed(give_up(log.decision, {worst.name: worst.standings}))
        return InDoubtError(
            what, why=why, next=f"{commands.start} (it writes them again); or, if its source can't: {word}"
        )
    held = f" ({worst.name} waits for {', '.join(worst.held_back_by)})" if worst.held_back_by else ""
    then = commands.of("recover") if commands.run is not None else f"{commands.start}, or {commands.of('recover')}"
    return InDoubtError(what, why=f"{_nobody(state)}{held}", next=then)


def _nobody(state: State | None) -> str:
    """Return why no driver seems to be at work."""
    ahead = f": of {state.driver} {last_heard(state)}" if state is not None and is_ahead(state) else ""
    return f"no driver is known to work on them{ahead}" if ahead else "no driver works on them"


def _undecided(views: Sequence[SinkView], state: State | None, commands: Commands) -> InDoubtError:
    count = sum(view.holds("undecided") for view in views)
    return InDoubtError(
        f"{', '.join(view.name for view in views)} hold {count} participants that no driver decided",
        why=f"{_nobody(state)}: they may hold locks, open transactions and space until a start removes them",
        next=f"{commands.start}, or {commands.of('recover')}",
    )


def _foreign(views: Sequence[SinkView], commands: Commands) -> ForeignError:
    tokens = {holding.participant.token for view in views for holding in view.held if holding.whose == "foreign"}
    sweep = " ".join([commands.of("recover"), *(f"--sweep-token {token}" for token in sorted(tokens)), "--dry-run"])
    return ForeignError(
        f"{', '.join(view.name for view in views)} hold participants of this job's name that are not this journal's",
        why="another journal uses the name, or this one went back in time, or was deleted: a start is refused",
        next="give one of the two jobs another name and a new checkpoint; or, once no other job runs under this name, "
        f"list that work, and repeat without --dry-run to abort it: {sweep}",
    )


def _emptied(state: State) -> LineageError:
    return LineageError(
        "the journal is empty, and this job has run",
        why=f"its state says so: {state.driver} was generation {state.generation}. The journal was deleted; or it is "
        "in a database, and [job] name or journal has changed",
        next="restore the journal, or the former name; or `exactsink rebase JOB.toml` shows the marks in the targets",
    )
