"""A job's batch runs, and the progress of each, by its journal and, if it is decided, by its sinks. Only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from exactsink.contract import ExactsinkError
from exactsink.job.config import JobConfig
from exactsink.job.history import JobHistory
from exactsink.observe.state import is_live
from exactsink.operate.health import health_of
from exactsink.operate.views import ASKED_SECONDS, look
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Log
from exactsink.protocol.sinks import Sink
from exactsink.toolkit.waiting import backoff

__all__ = ["BatchRun", "batch_runs"]


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One batch run. `run` is its name, `job_in_ids` its name in ids, `at` the time of its journal's last entry.

    `state` is `complete`, `at work`, `undecided` (claimed, so its sinks may hold work), `never decided` (begun, but not
    claimed), or `unreadable`. For a decided run it is `committed` (in every sink, but not recorded as complete), or the
    state of its `Health`. `problem` says why a person, or a start, is needed.
    """

    run: str | None
    job_in_ids: str
    state: str
    rows: int | None = None
    driver: str | None = None
    at: float | None = None
    problem: ExactsinkError | None = None


def batch_runs(config: JobConfig, sinks: Mapping[str, Sink]) -> Sequence[BatchRun]:
    """Return all batch runs of a job, the newest last."""
    found = [_batch_run(history, sinks) for history in JobHistory.batch_runs(config)]
    return sorted(found, key=lambda run: (run.at or 0.0, run.job_in_ids))


def _batch_run(history: JobHistory, sinks: Mapping[str, Sink]) -> BatchRun:
    try:
        with closing(history.journal(backoff)) as journal:
            log = journal.read()
            if not log.claims:
                return BatchRun(None, history.job, "never decided")
            state, problem = _state(history, sinks, journal)
    except ExactsinkError as error:
        history.commands.name(error)
        return BatchRun(None, history.job, "unreadable", problem=error)
    rows = sum(log.decision.rows.values()) if log.decision is not None else None
    at = max(log.anchors[-1].at, log.decision.at if log.decision is not None else 0.0)
    return BatchRun(_name(log), history.job, state, rows, log.claims[-1].driver, at or None, problem)


def _state(history: JobHistory, sinks: Mapping[str, Sink], journal: Journal) -> tuple[str, ExactsinkError | None]:
    log, state = journal.log, history.last_state()
    if log.is_complete:
        return "complete", None
    if log.decision is None and is_live(state):
        return "at work", None
    history = replace(history, run=_name(log))
    log, views = look(history, sinks, journal.read, journal.whole, seconds=ASKED_SECONDS)
    health = health_of(log, views, history.last_state(state), history.commands)
    if health.word in ("proven", "undecided work"):
        return "committed" if log.decision is not None else "undecided", health.refusal
    return health.word, health.refusal


def _name(log: Log) -> str:
    identity = log.claims[-1].identity
    return identity.run if identity is not None else ""
