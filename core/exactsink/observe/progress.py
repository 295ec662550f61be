"""A run's progress in its log: a line for each epoch, or for several short ones, and one at its end."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exactsink.contract import Event

__all__ = ["EpochLines", "Line"]

_LOG = logging.getLogger("exactsink.epoch")
_EVERY_SECONDS = 10.0


@dataclass(slots=True)
class _Epoch:
    """The measurements of one epoch so far."""

    began: float
    phases: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    writing: float | None = None
    skipped: bool = False


@dataclass(slots=True)
class Line:
    """The complete epochs that one line sums up."""

    epochs: int = 0
    epoch: int = 0
    seconds: float = 0.0
    skipped: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)

    def add(self, number: int, epoch: _Epoch, rows: Mapping[str, int], now: float) -> None:
        self.epochs, self.epoch = self.epochs + 1, number
        self.seconds += now - epoch.began
        self.skipped += epoch.skipped
        self.rows.update(rows)
        self.bytes.update(epoch.bytes)
        for phase, seconds in epoch.phases.items():
            self.phases[phase] += seconds  # type: ignore[assignment]


def _every_seconds() -> float:
    """Return the time between two lines: long only for a log that is not a terminal, unless `-v` is given."""
    watched = sys.stderr.isatty() or logging.getLogger("exactsink").isEnabledFor(logging.INFO)
    return 0.0 if watched else _EVERY_SECONDS


class EpochLines:
    """Log a line at INFO for each complete epoch: its rows by sink, its seconds, and those of each phase.

    In JSON it also has the bytes by sink. Without a terminal there is at most one line in 10 s; it sums up `epochs`,
    and `epoch` is the last of them. Epochs that wait for a line get it with the heartbeat. The end of a run is a line
    about the whole run. `out` gets the lines of epochs in place of the log.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        every_seconds: Callable[[], float] = _every_seconds,
        out: Callable[[str, Line], None] | None = None,
    ) -> None:
        self._clock = clock
        self._out = out or _log_line
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._open: dict[str, tuple[int, _Epoch]] = {}
        self._waiting: dict[str, Line] = {}
        self._logged: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        if event.name == "run_ended":
            _log_end(event)
            return
        with self._lock:
            done = event.epoch is not None and self._take(event, event.epoch)
            line = self._due(event.job) if done or event.name == "beat" else None
        if line is not None:
            self._out(event.job, line)

    def _take(self, event: Event, number: int) -> bool:
        """Add an event to its epoch. Return whether that epoch is complete."""
        known, epoch = self._open.get(event.job, (None, None))
        if epoch is None or known != number:
            epoch = _Epoch(self._clock())
            self._open[event.job] = (number, epoch)
        _add(epoch, event, self._clock())
        if (event.name, event.edge) != ("return", "before"):
            return False
        del self._open[event.job]
        line = self._waiting.setdefault(event.job, Line())
        line.add(number, epoch, event.fields["rows"], self._clock())
        return True

    def _due(self, job: str) -> Line | None:
        """Return the line that must be logged now, if any."""
        last = self._logged.get(job)
        if job not in self._waiting or (last is not None and self._clock() - last < self._every_seconds()):
            return None
        self._logged[job] = self._clock()
        return self._waiting.pop(job)


def _log_line(job: str, line: Line) -> None:
    seconds = round(line.seconds, 3)
    phases = {phase: round(seconds, 3) for phase, seconds in line.phases.items()}
    more = {"epochs": line.epochs, "rows": dict(line.rows), "bytes": dict(line.bytes)}
    more |= {"seconds": seconds, "phases": phases}
    done = Event("epoch", job, "", line.epoch, {**more, "skipped": line.skipped > 0})
    summed = f" epochs={line.epochs}" if line.epochs > 1 else ""
    shown = " ".join(f"{phase}={seconds}" for phase, seconds in phases.items())
    again = " (it was decided before)" if line.epochs == 1 else f" ({line.skipped} were decided before)"
    text = f"epoch job={job} epoch={line.epoch}{summed} seconds={seconds} rows: {_shown(line.rows)} phases: {shown}"
    _LOG.info("%s", text + (again if line.skipped else ""), extra={"exactsink": done.as_dict()})


def _log_end(event: Event) -> None:
    ran = dict(event.fields)
    rows = ran.pop("rows")
    shown = "".join(f" {name}={value}" for name, value in ran.items() if value is not None)
    text = f"run_ended job={event.job}{shown} rows: {_shown(rows) or 'none'}"
    _LOG.info("%s", text, extra={"exactsink": event.as_dict()})


def _shown(rows: Mapping[str, Any]) -> str:
    return " ".join(f"{sink}={count:,}" for sink, count in rows.items())


def _add(epoch: _Epoch, event: Event, now: float) -> None:
    """Add an event's data to its epoch. The write phase lies between the opened epoch and its vote."""
    if event.name == "vote" and event.edge == "before" and epoch.writing is not None:
        epoch.phases["write"] = epoch.phases.get("write", 0.0) + now - epoch.writing
        epoch.writing = None
    if event.edge == "after" and "seconds" in event.fields:
        epoch.phases[event.name] = epoch.phases.get(event.name, 0.0) + event.fields["seconds"]
        if event.name == "open_epoch":
            epoch.writing = now
    if event.name == "written":
        epoch.bytes[event.fields["sink"]] = event.fields["bytes"]
    if event.name == "epoch_skipped":
        epoch.skipped = True
