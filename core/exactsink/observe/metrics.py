"""The metrics of a job, one table for all exporters, and the conversion of events into measurements."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from exactsink.contract import Event

__all__ = ["BUCKETS", "METRICS", "PHASE", "Measurement", "Measures", "Metric"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the phases' durations in seconds, from one journal entry up to a large epoch's write."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, with its name in each exporter.

    `event` is the event or point that feeds it. `field` is the event's field with the value; a counter without one
    counts events. `labels` come from the event's job and fields.
    """

    prometheus: str
    opentelemetry: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    help: str
    event: str
    field: str = ""


_JOB, _SINK = ("job",), ("job", "sink")


def _metric(name: str, labels: tuple[str, ...], unit: str, source: str, help: str, dotted: str = "") -> Metric:
    """Make a metric. `source` is the event that feeds it and, after a dot, the field with its value."""
    event, _, field = source.partition(".")
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    dotted = dotted or name.removesuffix("_total")
    return Metric(f"exactsink_{name}", f"exactsink.{dotted}", kind, labels, unit, help, event, field)


PHASE = Metric(
    "exactsink_phase_seconds",
    "exactsink.phase.duration",
    "histogram",
    ("job", "phase", "sink"),
    "s",
    "Duration of each phase that succeeded; `sink` is empty, except for the phase `commit`.",
    "every point",
    "seconds",
)
_EPOCHS = _metric(
    "epochs_total", _JOB, "{epoch}", "return", "Epochs that this process decided, counted once when complete."
)
_ROWS = _metric(
    "rows_total",
    _SINK,
    "{row}",
    "return.rows",
    "Rows of the epochs that this process decided, counted once when complete.",
)
_BYTES = _metric(
    "bytes_total",
    _SINK,
    "By",
    "written.bytes",
    "Bytes of those rows, as Arrow has them in memory when a sink's writers get them.",
)
_LOST = _metric(
    "lost_votes_total",
    _SINK,
    "{vote}",
    "vote_lost",
    "Decided participants that their store lost; each is counted once, though several commits meet it.",
)
_COMPLETE = _metric(
    "complete_epoch", _JOB, "{epoch}", "complete", "The last epoch that this process saw complete in every sink."
)
_DIRECT = (
    _metric("skipped_total", _JOB, "{epoch}", "epoch_skipped", "Batches that were decided before, and only finished."),
    _metric("replayed_total", _JOB, "{vote}", "redecided.participants", "Lost participants that were written again."),
    _metric(
        "commit_retries_total",
        _SINK,
        "{retry}",
        "commit_retried",
        "Commits that failed and were tried again.",
        "commit.retries",
    ),
    _metric("swept_total", _SINK, "{participant}", "swept.participants", "Undecided participants that were aborted."),
    _metric(
        "quarantined_rows_total",
        _SINK,
        "{row}",
        "quarantined.rows",
        "Rows of decided epochs that the sink can't hold, and that went to its quarantine.",
    ),
    _metric("fenced_total", _JOB, "{driver}", "fenced", "How often a driver in this process was fenced by another."),
    _metric(
        "restarts_total", _JOB, "{restart}", "query_restarted", "How often the query was started again after an error."
    ),
    _metric(
        "in_doubt",
        _SINK,
        "{participant}",
        "in_doubt.participants",
        "Participants that the sink's store still held after the last sweep, decided or not.",
    ),
    _metric(
        "in_doubt_oldest_seconds",
        _SINK,
        "s",
        "in_doubt.oldest_age_seconds",
        "Age of the oldest of them at that sweep; 0 when there is none, -1 when the store reports no age.",
        "in_doubt.oldest",
    ),
    _metric(
        "seconds_to_deadline",
        _SINK,
        "s",
        "deadline.seconds",
        "Time that was left, at the last vote, until the store may drop the earliest participant.",
        "deadline.left",
    ),
    _metric("generation", _JOB, "{generation}", "claimed.generation", "Generation of this process's last claim."),
)
METRICS = (_EPOCHS, _ROWS, _BYTES, PHASE, _COMPLETE, _LOST, *_DIRECT)
"""Every metric of exactsink. All exporters have exactly these."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value for one metric: a counter's increase, a gauge's value, or a histogram's observation."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class Measures:
    """Turn events into measurements, for any number of jobs and threads. `clock` returns seconds.

    An epoch counts in the process that decided it. A replay of an epoch that another process decided counts only as
    `skipped`, so sums over all processes never count an epoch or a row twice.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._writing: dict[str, float] = {}
        self._decided: Counter[tuple[str, int | None]] = Counter()
        self._written: dict[str, tuple[int | None, dict[str, int]]] = {}
        """By job, the bytes per sink of the epoch that was voted on last."""
        self._lost: dict[str, set[str]] = {}

    def __call__(self, event: Event) -> Sequence[Measurement]:
        """Return an event's measurements, in the table's terms. Counters start with 0, so that a first rise shows."""
        with self._lock:
            if event.edge == "before":
                return self._before(event)
            if event.edge == "after":
                return self._after(event)
            if event.name == "vote_lost":
                return self._vote_lost(event)
            if event.name == "written":
                return self._keep_written(event)
        if event.name == "sink":
            return _zeros(event, _SINK)
        direct = [Measurement(m, _labels(m, event), _value(m, event)) for m in _DIRECT if m.event == event.name]
        return [*_zeros(event, _JOB), *direct] if event.name == "claimed" else direct

    def _before(self, event: Event) -> list[Measurement]:
        if event.name == "vote" and event.job in self._writing:
            return [_phase(event.job, "write", "", self._clock() - self._writing.pop(event.job))]
        if event.name == "return" and self._decided[event.job, event.epoch]:
            self._decided[event.job, event.epoch] -= 1
            self._decided += Counter()  # drops entries at 0
            rows = [Measurement(_ROWS, (event.job, sink), n) for sink, n in event.fields["rows"].items()]
            epoch, of = self._written.get(event.job, (None, {}))
            known = of if epoch == event.epoch else {}
            sizes = [Measurement(_BYTES, (event.job, sink), size) for sink, size in known.items()]
            return [Measurement(_EPOCHS, (event.job,), 1), *rows, *sizes]
        return []

    def _after(self, event: Event) -> list[Measurement]:
        point, _, sink = event.name.partition(":")
        if "seconds" not in event.fields:  # different calls report a return's two sides
            return []
        measured = [_phase(event.job, point, sink, event.fields["seconds"])]
        if point == "open_epoch":
            self._writing[event.job] = self._clock()
        elif point == "decide":
            self._decided[event.job, event.epoch] += 1
        elif point == "complete" and event.epoch is not None:
            self._lost.pop(event.job, None)
            measured.append(Measurement(_COMPLETE, (event.job,), event.epoch))
        return measured

    def _keep_written(self, event: Event) -> list[Measurement]:
        """Keep the bytes of an epoch's tasks until it is complete, because a refused epoch is written again."""
        epoch, of = self._written.get(event.job, (None, {}))
        self._written[event.job] = event.epoch, (of if epoch == event.epoch else {})
        self._written[event.job][1][event.fields["sink"]] = event.fields["bytes"]
        return []

    def _vote_lost(self, event: Event) -> list[Measurement]:
        """Count a lost participant once, though both `start` and the replay of its epoch report it."""
        known = self._lost.setdefault(event.job, set())
        if event.fields["txn"] in known:
            return []
        known.add(event.fields["txn"])
        return [Measurement(_LOST, _labels(_LOST, event), 1)]


def _phase(job: str, phase: str, sink: str, seconds: float) -> Measurement:
    return Measurement(PHASE, (job, phase, sink), seconds)


def _labels(metric: Metric, event: Event) -> tuple[str, ...]:
    return tuple(event.job if label == "job" else event.fields[label] for label in metric.labels)


def _value(metric: Metric, event: Event) -> float:
    if not metric.field:
        return 1
    value = event.fields[metric.field]
    if value is None:  # the age in doubt, if there is none, or if the store does not report it
        return 0 if event.fields.get("participants") == 0 else -1  # OpenTelemetry takes no NaN
    return float(value)


def _zeros(event: Event, labels: tuple[str, ...]) -> list[Measurement]:
    """Start the counters of a job, or of one of its sinks, at 0."""
    counters = [m for m in METRICS if m.kind == "counter" and m.labels == labels]
    return [Measurement(m, _labels(m, event), 0) for m in counters]
