"""When an epoch's steps happened, by the job's events."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from exactsink.contract import Event

__all__ = ["PHASES", "TimedEpoch", "Timeline", "quantile"]

PHASES = ("open", "write", "vote", "decide", "commit", "complete")
"""The parts of an epoch's time. `write` is the Spark job: reading, shaping, writing, pre-commits."""

_WHOLE = {("vote", "before"), ("return", "before")}


@dataclass(slots=True)
class _Marks:
    at: dict[tuple[str, str], float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedEpoch:
    """One epoch that this driver ran from start to end. Durations are in seconds; moments are of the system's clock."""

    number: int
    began: float
    ended: float
    phases: Mapping[str, float]
    commits: Mapping[str, tuple[float, float]]
    """The begin and end of each sink's commit."""
    rows: Mapping[str, int]
    cpu: float
    """CPU seconds of all own processes up to the epoch's end."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def window(self) -> float:
        """How long sinks differed: from the end of the first sink's commit to that of the last."""
        ends = [end for _, end in self.commits.values()]
        return max(ends) - min(ends)

    def held(self, sink: str) -> float:
        """How long, at most, the sink's rows waited between their tasks and their commit."""
        return self.commits[sink][1] - self.began - self.phases["open"]


class Timeline:
    """Receives a job's events. `cpu` is read at the end of each epoch."""

    def __init__(self, cpu: Callable[[], float]) -> None:
        self._cpu = cpu
        self._epochs: dict[int, _Marks] = {}

    def __call__(self, event: Event) -> None:
        if not event.edge or event.epoch is None:
            return
        marks = self._epochs.setdefault(event.epoch, _Marks())
        marks.at[event.name, event.edge] = time.monotonic()
        if (event.name, event.edge) == ("return", "before"):
            marks.rows, marks.cpu = event.fields["rows"], self._cpu()

    def epochs(self) -> Sequence[TimedEpoch]:
        """Return the epochs in their order, without those that were only finished, or have not ended."""
        return [_epoch(n, marks) for n, marks in sorted(self._epochs.items()) if marks.at.keys() >= _WHOLE]


def _epoch(number: int, marks: _Marks) -> TimedEpoch:
    at = marks.at
    names = [name for name, edge in at if name.startswith("commit:") and edge == "after"]
    commits = {name.partition(":")[2]: (at[name, "before"], at[name, "after"]) for name in names}
    moments = [
        at["open_epoch", "before"],
        at["open_epoch", "after"],
        at["vote", "before"],
        at["vote", "after"],
        at["decide", "after"],
        max(end for _, end in commits.values()),
        at["return", "before"],
    ]
    phases = dict(zip(PHASES, (after - before for before, after in itertools.pairwise(moments)), strict=True))
    return TimedEpoch(number, moments[0], moments[-1], phases, commits, marks.rows, marks.cpu)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]
