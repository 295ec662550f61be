"""Named events: the protocol's points, each with a before and an after, and all other reports.

Logs, metrics, tests and fault injection use the same event names. The names are an interface; `POINTS` and `EVENTS`
list them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from exactsink.contract import Event

__all__ = ["EVENTS", "POINTS", "EventKind", "Events", "Subscriber"]

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "claim": "the driver claims the job in the journal, which fences older drivers",
        "recommit": "at its start, the driver commits the last decided epoch again",
        "sweep": "at its start, the driver aborts undecided work of older generations; later sweeps have no point",
        "open_epoch": "every sink prepares for the epoch's tasks",
        "write": "a task hands rows to its writers",
        "pre_commit": "a task's writers make their rows durable but not visible, and vote",
        "vote": "the driver compares the votes with the rows that the tasks got",
        "decide": "the driver appends the decision to the journal: the commit point",
        "commit:<sink>": "the driver commits one sink's committables",
        "complete": "the epoch is complete in every sink, and the driver records it in `state.json`",
        "return": "the driver hands the epoch back, and the source records it. Its `before` has `rows`, by sink",
    }
)
"""The protocol's named points in their order.

`write` and `pre_commit` happen in tasks. An after has `seconds`, except that of `return`, because its two sides are
reported by different calls.
"""


@dataclass(frozen=True, slots=True)
class EventKind:
    """The meaning of an event, and its fields besides job and epoch."""

    reports: str
    fields: tuple[str, ...] = ()


_EVENTS = {
    "sink": ("the guarantee of a sink, reported at start", "sink backend strategy guarantee target"),
    "preflight_warning": ("a warning of a sink's preflight", "sink message fix"),
    "journal_warning": ("a warning of preflight about the journal's place", "message fix"),
    "setting_advised": ("a setting that would make the job faster, and that Spark takes only at its start", "setting"),
    "claimed": ("this driver owns the job", "generation driver"),
    "taken_over": ("an operator's command claimed the job of a driver that may be alive", "generation"),
    "fenced": ("another driver has claimed the job, so this driver stops", "generation by"),
    "decided": ("an epoch is decided, and not complete yet", "at sinks entries bytes"),
    "quarantined": (
        "rows of a decided epoch that the sink can't hold went to its quarantine; `reason` is that of the first row",
        "sink quarantine rows reason",
    ),
    "in_doubt": ("participants that a sink's store still holds after a sweep", "sink participants oldest_age_seconds"),
    "swept": ("undecided participants were aborted", "sink participants"),
    "written": ("rows that a sink's writers got, reported at the vote; bytes as in Arrow's memory", "sink rows bytes"),
    "deadline": ("seconds until a sink's earliest deadline, reported at the vote", "sink seconds"),
    "deadline_near": ("half of the time for which the store keeps prepared work (`of`) has passed", "sink seconds of"),
    "commit_retried": ("a commit failed and is tried again", "sink attempt error"),
    "commit_held_back": ("a sink is not committed yet, because it waits for another sink", "sink after"),
    "vote_lost": ("a decided participant is proven lost, so the job writes its rows again", "sink txn evidence"),
    "redecided": ("the rows of lost participants were written again and decided", "sink participants"),
    "evidence_expired": ("a sink no longer knows of a commit that the source has recorded as done", "sink evidence"),
    "epoch_skipped": ("a batch was decided before, so the driver finished it and wrote no row again", "reason"),
    "source_not_reported": (
        "a sink could not store the source's offsets (Kafka: `report_offsets_to`); the job goes on",
        "sink error",
    ),
    "in_doubt_long": (
        "an undecided participant has stayed for more than two epochs; run `exactsink indoubt list JOB.toml`",
        "sink participant",
    ),
    "not_left_clean": ("the driver could not record that nothing is in doubt; nothing is lost", "error"),
    "state_not_saved": ("`state.json` could not be replaced; the job goes on", "error"),
    "stop_asked": ("`by` has requested a stop; the driver ends after its epoch, within `seconds`", "by seconds"),
    "query_ending": ("after `stop_asked`: the driver stops the query as soon as its epoch is done", ""),
    "beat": (
        "`state.json` has a new heartbeat; `last` has the times of the last fencing and, by sink, of the last loss",
        "last",
    ),
    "source_behind": (
        "how far a batch was behind its source; `of` is the unit: `offsets`, `files` or `bytes`",
        "source of behind",
    ),
    "query_restarted": ("the query stopped, and is started again", "attempt error"),
    "run_ended": (
        "`exactsink run` ends, for any reason: its work since its start",
        "epochs last_epoch rows seconds restarts stopped_by",
    ),
    "run_known": ("a batch run was decided before, so the caller gets its old result", "run missing changed"),
    "adopted": ("a new query continues the journal; its batch 0 is epoch `base`", "query_id base"),
    "noted": ("the journal has recorded an operator's action", "text"),
}

EVENTS: Mapping[str, EventKind] = MappingProxyType(
    {name: EventKind(reports, tuple(given.split())) for name, (reports, given) in _EVENTS.items()}
)
"""Every event that is not a protocol point."""

_LOG = logging.getLogger("exactsink")


Subscriber = Callable[[Event], None]
"""Receives every event. Called from several threads at once while sinks are committed in parallel."""


class Events:
    """Report a job's events to the log and to subscribers. A subscriber's exception is logged and changes nothing.

    A log record's message is the event as text; its attribute `exactsink` is the event as a dict. A name that is in
    neither `EVENTS` nor `POINTS` raises ValueError, because it is a programming mistake. `typed` returns a text with
    the job's file in the commands that it names.
    """

    def __init__(self, job: str, subscribers: Sequence[Subscriber] = (), typed: Callable[[str], str] = str) -> None:
        self.job = job
        self._typed = typed
        self._subscribers = tuple(subscribers)

    def report(self, name: str, *, epoch: int | None = None, level: int = logging.INFO, **fields: Any) -> None:
        """Report that something happened."""
        if name not in EVENTS:
            raise ValueError(f"{name!r} is not an event: add it to EVENTS")
        if self._heard(level):
            fields = {key: self._typed(said) if isinstance(said, str) else said for key, said in fields.items()}
            self._send(Event(name, self.job, "", epoch, fields), level)

    def edge(self, name: str, edge: Literal["before", "after"], epoch: int | None, **fields: Any) -> None:
        """Report one side of a protocol point."""
        if name not in POINTS and not name.startswith("commit:"):
            raise ValueError(f"{name!r} is not a protocol point: they are in POINTS")
        if self._heard(logging.DEBUG):
            self._send(Event(name, self.job, edge, epoch, fields), logging.DEBUG)

    @contextmanager
    def point(self, name: str, epoch: int | None = None) -> Iterator[None]:
        """Report both sides of a protocol point around its body; the after, with its duration, only on success."""
        started = time.monotonic()
        self.edge(name, "before", epoch)
        yield
        self.edge(name, "after", epoch, seconds=round(time.monotonic() - started, 6))

    def _heard(self, level: int) -> bool:
        return bool(self._subscribers) or _LOG.isEnabledFor(level)

    def _send(self, event: Event, level: int) -> None:
        if _LOG.isEnabledFor(level):
            _LOG.log(level, "%s", event, extra={"exactsink": event.as_dict()})
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                _LOG.exception("a subscriber failed on %s", event)
