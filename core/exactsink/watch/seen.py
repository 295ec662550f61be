"""A job's present state as JSON values: journal, state file, sinks and the last hours."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exactsink.contract import ExactsinkError
from exactsink.job.history import JobHistory
from exactsink.observe.state import last_heard
from exactsink.operate.actions import Operator
from exactsink.operate.health import health_of
from exactsink.operate.views import ASKED_SECONDS, SinkView, look
from exactsink.protocol.sinks import Sink
from exactsink.watch.recent import Period, recent_periods

__all__ = ["Seen", "SinkSeen", "Watched"]


@dataclass(frozen=True, slots=True)
class SinkSeen:
    """A sink: the rows of its last decided epoch, and how many of its participants are not proven committed."""

    name: str
    backend: str
    target: str
    rows: int
    in_doubt: int
    undecided: int
    foreign: int
    mark: str
    problem: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A job at one moment; `problem` names a store that could not be read, or a person's next step."""

    job: str
    at: float
    state: str = "not read yet"
    decided: int | None = None
    complete: int | None = None
    driver: str = ""
    heartbeat: str = ""
    sinks: Sequence[SinkSeen] = ()
    periods: Sequence[Period] = ()
    problem: str = ""

    @property
    def rows_a_second(self) -> float:
        """Rows per second, of all sinks together, in the last period."""
        return self.periods[-1].rows_a_second if self.periods else 0.0


class Watched:
    """A job that is queried repeatedly. A query changes nothing."""

    def __init__(self, history: JobHistory, sinks: Mapping[str, Sink], operator: Operator) -> None:
        self._history, self._sinks, self._operator = history, sinks, operator
        self._last = Seen(history.job, time.time())

    def look(self) -> Seen:
        """Return the job as it is now. If a store can't be read, `problem` says so, and its values are the previous."""
        try:
            self._last = self._looked()
        except ExactsinkError as error:
            self._history.commands.name(error)
            self._last = replace(self._last, at=time.time(), problem=str(error))
        return self._last

    def _looked(self) -> Seen:
        operator = self._operator
        state = self._history.last_state()
        log, views = look(self._history, self._sinks, operator.read, operator.whole)
        state = self._history.last_state(state)
        checkpoint = operator.checkpoint_problem(ASKED_SECONDS)
        health = health_of(log, views, state, self._history.commands, checkpoint)
        decided = log.decision.epoch if log.decision else None
        proven = all(view.is_proven and view.problem is None for view in views)
        heard = "no driver yet" if state is None else last_heard(state) if state.heartbeat else "the driver has ended"
        return Seen(
            self._history.job,
            time.time(),
            health.word,
            decided,
            decided if proven else state.complete_epoch if state else None,
            log.claims[-1].driver if log.claims else "",
            heard,
            [_sink(view) for view in views],
            recent_periods(self._history),
            "" if health.refusal is None else str(health.refusal),
        )


def _sink(view: SinkView) -> SinkSeen:
    return SinkSeen(
        view.name if view.in_config else f"{view.name} (not in the config)",
        f"{view.backend}, {view.strategy}",
        view.target,
        sum(committable.rows for committable in view.committables),
        len(view.committables) - view.count("committed"),
        view.holds("undecided"),
        view.holds("foreign"),
        "" if view.mark is None else str(view.mark),
        "" if view.problem is None else str(view.problem),
    )
