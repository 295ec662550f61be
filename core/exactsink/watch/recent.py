"""A job's work of the last hours: the driver writes `recent.json` beside the journal, and decides nothing by it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from exactsink.contract import Event, ExactsinkError
from exactsink.job.history import JobHistory
from exactsink.observe.progress import EpochLines, Line
from exactsink.toolkit.storage import ObjectPath, replace_whole, storage_errors

__all__ = ["Period", "Recent", "recent_periods"]

_PERIODS, _PERIOD_SECONDS = 720, 30.0
"""Six hours if epochs follow without a pause; more if the job pauses."""
_WRITE_SECONDS, _REQUEST_SECONDS = 2.0, 15.0
"""The least seconds between two writes of the file: on a disk, and in an object store, where a write is a request."""


@dataclass(slots=True)
class Period:
    """Epochs that were completed one after the other: begin and end (Unix seconds), and the seconds of their phases."""

    began: float
    ended: float
    epochs: int = 0
    epoch: int = 0
    seconds: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    behind: dict[str, float] = field(default_factory=dict)

    @property
    def rows_a_second(self) -> float:
        """Rows per second, of all sinks together."""
        return sum(self.rows.values()) / max(self.ended - self.began, 0.001)

    def add(self, line: Line, now: float, behind: Mapping[str, float]) -> None:
        """Add the epochs of a log line that is written now."""
        self.ended, self.epoch, self.behind = now, line.epoch, dict(behind)
        self.epochs, self.seconds = self.epochs + line.epochs, round(self.seconds + line.seconds, 3)
        self.rows = dict(Counter(self.rows) + line.rows)
        taken = {name: self.phases.get(name, 0.0) + seconds for name, seconds in line.phases.items()}
        self.phases |= {name: round(seconds, 3) for name, seconds in taken.items()}


class Recent:
    """Receive a stream's events, keep its periods. Writes the whole file from time to time, again after a failure."""

    def __init__(self, history: JobHistory) -> None:
        self._history = history
        self._ended = False
        self._lock = threading.Lock()
        self._behind: dict[str, float] = {}
        self._periods: list[Period] | None = None
        remote = isinstance(history.folder, ObjectPath)
        every = _REQUEST_SECONDS if remote else _WRITE_SECONDS
        self._lines = EpochLines(every_seconds=lambda: 0.0 if self._ended else every, out=self._keep)

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if event.job != self._history.job:  # of a batch run
            return
        if event.name == "source_behind":
            with self._lock:
                self._behind[f"{event.fields['of']} of {event.fields['source']}"] = event.fields["behind"]
        elif event.name == "run_ended":
            self._ended = True
            self._lines(Event("beat", event.job, "", None, {}))
        else:
            self._lines(event)

    def _keep(self, job: str, line: Line) -> None:
        now = time.time()
        with self._lock, suppress(OSError, ExactsinkError):
            if self._periods is None:
                self._periods = list(recent_periods(self._history))
            if not self._periods or now - self._periods[-1].began > _PERIOD_SECONDS:
                self._periods.append(Period(now - line.seconds, now))
            self._periods[-1].add(line, now, self._behind)
            del self._periods[:-_PERIODS]
            place = self._history.folder / "recent.json"
            replace_whole(place, json.dumps([asdict(period) for period in self._periods]))


def recent_periods(history: JobHistory) -> Sequence[Period]:
    """Return the periods of the file, oldest first; none from another release. Raises Retryable or Fatal."""
    with storage_errors(history.folder, f"the job's last hours in {history.folder} can't be read"):
        try:
            kept: list[dict[str, Any]] = json.loads((history.folder / "recent.json").read_text())
            return [Period(**period) for period in kept]
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError):
            return ()
