"""Metrics that are computed at each scrape: the ages of running work, which grow even while a commit hangs."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from exactsink import __version__
from exactsink.contract import Event
from exactsink.observe.metrics import Measurement, Metric

__all__ = ["LIVE_METRICS", "Live"]

_JOB, _SINK = ("job",), ("job", "sink")


def _metric(name: str, labels: tuple[str, ...], unit: str, help: str) -> Metric:
    dotted = f"exactsink.{name.removesuffix('_seconds').removesuffix('_bytes').replace('_', '.')}"
    return Metric(f"exactsink_{name}", dotted, "gauge", labels, unit, help, "at each scrape")


_OPEN = _metric(
    "open_decision_seconds",
    _JOB,
    "s",
    "How long ago the oldest epoch was decided that is not complete in every sink; 0 when there is none.",
)
_PHASE = _metric(
    "current_phase_seconds",
    ("job", "phase", "sink"),
    "s",
    "Age of each running phase; `phase` is `between` while no epoch runs. A phase that has ended has no series.",
)
_DECIDED = _metric("decided_epoch", _SINK, "{epoch}", "The last epoch that is decided for this sink.")
_COMMITTED = _metric("committed_epoch", _SINK, "{epoch}", "The last epoch that is committed in this sink.")
_BEHIND = _metric(
    "source_behind",
    ("job", "source", "of"),
    "{item}",
    "How far the last batch was behind its source, as Spark reports it; `of` is offsets, files or bytes.",
)
_ENTRIES = _metric("journal_entries", _JOB, "{entry}", "Entries that the journal has had; old ones are deleted.")
_BYTES = _metric("decision_bytes", _JOB, "By", "Size of the last decision in the journal, which keeps up to 1,000.")
_BEAT = _metric("heartbeat_age_seconds", _JOB, "s", "How long ago the driver wrote its heartbeat into `state.json`.")
_FENCED = _metric("fenced_age_seconds", _JOB, "s", "How long ago a driver of the job was fenced, in any process.")
_LOST = _metric(
    "lost_votes_age_seconds", _SINK, "s", "How long ago a driver last found that the sink's store lost decided rows."
)
_BUILD = _metric("build_info", ("version", "python"), "1", "Always 1; the labels have the versions that run.")
LIVE_METRICS = (_OPEN, _PHASE, _DECIDED, _COMMITTED, _BEHIND, _ENTRIES, _BYTES, _BEAT, _FENCED, _LOST, _BUILD)
"""Every metric that is computed when it is read."""


@dataclass(slots=True)
class _Job:
    """The state of one job. Times are those of `clock`."""

    undone: dict[int, float] = field(default_factory=dict)
    phases: dict[tuple[str, str], float] = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    behind: dict[tuple[str, str], float] = field(default_factory=dict)
    entries: int | None = None
    bytes: int | None = None
    beat: float | None = None
    last: Mapping[str, float] = field(default_factory=dict)


class Live:
    """Receive events of any number of jobs, from any thread.

    `read` returns the present values. `clock` returns the time.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        with self._lock:
            job = self._jobs.setdefault(event.job, _Job())
            if event.edge:
                self._edge(job, event)
            else:
                self._happened(job, event)

    def read(self) -> Sequence[Measurement]:
        """Return every present value."""
        now = self._clock()
        with self._lock:
            found = [measured for name, job in self._jobs.items() for measured in _measured(name, job, now)]
        return [*found, Measurement(_BUILD, (__version__, platform.python_version()), 1)]

    def _edge(self, job: _Job, event: Event) -> None:
        point, _, sink = event.name.partition(":")
        if event.edge == "before" and point == "claim":  # a claim before this one may have ended anywhere
            job.phases = {}
        if event.edge == "before" and point != "return":
            job.phases.pop(("between", ""), None)
            job.phases.pop(("write", ""), None)
            job.phases[point, sink] = self._clock()
        else:
            job.phases.pop((point, sink), None)
        if (point, event.edge) in (("return", "before"), ("sweep", "after")):
            job.phases = {("between", ""): self._clock()}
        elif event.edge == "after" and point == "open_epoch":
            job.phases["write", ""] = self._clock()
        elif event.edge == "after" and point == "commit" and event.epoch is not None:
            job.committed[sink] = event.epoch
        elif event.edge == "after" and point == "complete" and event.epoch is not None:
            job.undone = {epoch: at for epoch, at in job.undone.items() if epoch > event.epoch}

    def _happened(self, job: _Job, event: Event) -> None:
        fields = event.fields
        if event.name == "decided" and event.epoch is not None:
            job.undone[event.epoch] = fields["at"]
            job.decided |= dict.fromkeys(fields["sinks"], event.epoch)
            job.entries, job.bytes = fields["entries"], fields["bytes"]
        elif event.name == "beat":
            job.beat, job.last = self._clock(), fields.get("last", {})
        elif event.name == "source_behind":
            job.behind[fields["source"], fields["of"]] = fields["behind"]
        elif event.name == "query_restarted":  # its thread's phases are over
            job.phases = {}


def _measured(name: str, job: _Job, now: float) -> Iterator[Measurement]:
    yield Measurement(_OPEN, (name,), now - min(job.undone.values(), default=now))
    yield from (Measurement(_PHASE, (name, *phase), now - began) for phase, began in job.phases.items())
    yield from (Measurement(_DECIDED, (name, sink), epoch) for sink, epoch in job.decided.items())
    yield from (Measurement(_COMMITTED, (name, sink), epoch) for sink, epoch in job.committed.items())
    yield from (Measurement(_BEHIND, (name, *of), behind) for of, behind in job.behind.items())
    if job.entries is not None:
        yield Measurement(_ENTRIES, (name,), job.entries)
    if job.bytes is not None:
        yield Measurement(_BYTES, (name,), job.bytes)
    if job.beat is not None:
        yield Measurement(_BEAT, (name,), now - job.beat)
    for event, at in job.last.items():
        _, _, sink = event.partition(":")
        yield Measurement(_LOST, (name, sink), now - at) if sink else Measurement(_FENCED, (name,), now - at)
