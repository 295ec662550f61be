"""What grows while a job runs: samples of it, and their slopes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

AN_EPOCH = {"driver: MiB": 1.0, "driver: open files": 0.25}
EPOCHS = 50
"""What a driver may take more of with each epoch, and from how many epochs on that is judged."""
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What was there at one moment. `values` by what they count; not every sample has them all."""

    seconds: float
    epoch: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Slope:
    """How one quantity went: by least squares over its samples, which are of so many epochs."""

    what: str
    samples: int
    first: float
    last: float
    highest: float
    an_hour: float
    an_epoch: float
    epochs: int


def slopes(samples: Sequence[Sample]) -> Sequence[Slope]:
    """Return every quantity's slope, in the order in which they came up."""
    found = []
    for what in dict.fromkeys(name for sample in samples for name in sample.values):
        of = [sample for sample in samples if what in sample.values]
        values = [sample.values[what] for sample in of]
        hour = _slope([sample.seconds / _HOUR for sample in of], values)
        epoch = _slope([float(sample.epoch) for sample in of], values)
        found.append(Slope(what, len(of), values[0], values[-1], max(values), hour, epoch, of[-1].epoch - of[0].epoch))
    return found


def too_steep(found: Iterable[Slope]) -> Sequence[str]:
    """Name what one driver takes more and more of. Too few epochs show only how it warms up."""
    return [s.what for s in found if s.epochs >= EPOCHS and s.an_epoch > AN_EPOCH.get(s.what, inf)]


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((each - x) ** 2 for each in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0


def files_below(folder: Path) -> tuple[int, int]:
    """Count a folder's files, and their bytes; files and folders that go meanwhile don't count."""
    sizes = []
    for place, _, names in os.walk(folder):  # which passes over a folder that is gone; `rglob` raises
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(Path(place, name).stat().st_size)
    return len(sizes), sum(sizes)


def resident(pids: Iterable[int]) -> float:
    """Return the processes' memory in MiB."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, StopIteration):
            lines = Path("/proc", str(pid), "status").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return round(total / 1024, 1)


def open_files(pids: Iterable[int]) -> int:
    """Count the processes' file descriptors."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            total += len(os.listdir(f"/proc/{pid}/fd"))
    return total
