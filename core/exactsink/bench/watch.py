"""A reader in a separate process, which polls a target and records when it saw how many rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from exactsink.bench.target import BenchTarget, Place
from exactsink.bench.timeline import TimedEpoch
from exactsink.contract import Fatal
from exactsink.toolkit.storage import replace_file
from exactsink.toolkit.waiting import attempts_within

__all__ = ["Sight", "Watch", "count", "views"]

_PAUSE_SECONDS = 0.002
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Sight:
    """So many rows were seen at this moment, and not before."""

    moment: float
    rows: int


@dataclass(frozen=True, slots=True)
class Watch:
    """The work of a reader process until it is stopped. Two files in `folder` hold its progress and its goal."""

    target: BenchTarget
    place: Place
    folder: Path

    def wait_ready(self) -> None:
        """Wait until the reader has polled once. Raises Fatal."""
        for _ in attempts_within(_PATIENCE_SECONDS, first_seconds=0.01, longest_seconds=0.05):
            if self._ready.exists():
                return
        raise Fatal(f"the reader of {self.place.name} did not start", why="its own output, above, has the reason")

    def stop(self, rows: int) -> None:
        """Let the reader end once it sees so many rows, or the count stops growing."""
        replace_file(self._enough, str(rows).encode())

    @property
    def _ready(self) -> Path:
        return self.folder / f"{self.place.name}.ready"

    @property
    def _enough(self) -> Path:
        return self.folder / f"{self.place.name}.enough"

    def __call__(self) -> Sequence[Sight]:
        seen: list[Sight] = []
        most = end = None
        with closing(self.target.reader(self.place)) as reader:
            while True:
                rows = reader.rows()
                if not seen or rows != seen[-1].rows:
                    seen.append(Sight(time.monotonic(), rows))
                self._ready.touch()
                if most is None and self._enough.exists():
                    most, end = int(self._enough.read_text()), time.monotonic() + _PATIENCE_SECONDS
                if most is not None and end is not None and (rows >= most or time.monotonic() > end):
                    return seen
                time.sleep(_PAUSE_SECONDS)


def views(seen: Sequence[Sight], epochs: Sequence[TimedEpoch], sink: str) -> Sequence[tuple[float, float]]:
    """Return, for each epoch, how long after its begin a reader saw its first and its last row."""
    found, before = [], 0
    for epoch in epochs:
        whole = before + epoch.rows[sink]
        if epoch.rows[sink]:
            first = next(one.moment for one in seen if one.rows > before)
            last = next(one.moment for one in seen if one.rows >= whole)
            found.append((first - epoch.began, last - epoch.began))
        before = whole
    return found


def count(target: BenchTarget, place: Place, expected: int) -> int:
    """Count a copy's rows as a reader sees them. Wait for expected rows until the count stops growing."""
    with closing(target.reader(place)) as reader:
        rows, end = reader.rows(), time.monotonic() + _PATIENCE_SECONDS
        while rows < expected and time.monotonic() < end:
            time.sleep(_PAUSE_SECONDS)
            rows = reader.rows()
        return rows
