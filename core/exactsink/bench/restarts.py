"""How long a job takes to go on after its driver was killed: real processes and journals, one way to write, no Spark.

Played as the conformance kit plays it: the driver's process kills itself where it is asked to, another one follows.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from exactsink.bench.target import BenchTarget, Place
from exactsink.bench.watch import count
from exactsink.contract import Event, Fatal
from exactsink.protocol.sinks import Sink
from exactsink.testing import Fault, Script
from exactsink.testing.driver_run import run_driver
from exactsink.testing.faults import FaultTrigger
from exactsink.testing.processes import KILLED, ask, ended, start
from exactsink.testing.scenario import in_doubt

__all__ = ["EPOCHS", "POINTS", "Killed", "Restarts"]

_Edge = Literal["before", "after"]
POINTS: Sequence[tuple[str, str, _Edge]] = (
    ("before its tasks", "open_epoch", "after"),
    ("voted, not decided", "vote", "after"),
    ("decided, not committed", "decide", "after"),
    ("committed, not recorded", "complete", "before"),
)
"""Where a driver is killed, one epoch after the other; a name, and the protocol's point."""

EPOCHS = 2 + len(POINTS)
_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class Killed:
    """What a driver left that was killed, and how the next one went on. `bytes_left` may be unknown."""

    point: str
    in_doubt: int
    """Participants that were begun or prepared, and ended by nobody."""
    seconds: float
    """From the start of the next driver's process until its first epoch was complete."""
    bytes_left: int | None
    """By how much the target grew more than in an epoch without a kill, once the next driver was done."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """The play, for a fresh process that has no threads: the drivers are its forks. `batches` are EPOCHS epochs' rows.

    The first epoch makes what is made once, the second one shows by how much an epoch lets the target grow.
    """

    target: BenchTarget
    place: Place
    sink: Sink
    batches: Sequence[Sequence[pa.Table]] = field(repr=False)

    def __call__(self) -> Sequence[Killed]:
        """Kill a driver at each point, one epoch after the other, and count the rows at the end."""
        importlib.import_module("pandas")  # pyarrow may: here once, as in Spark's processes, not in each fork
        sizes = [self._size()]
        for epochs in (1, 2):
            self._whole(epochs)
            sizes.append(self._size())
        found = []
        for epoch, (name, point, edge) in enumerate(POINTS, start=2):
            self._kill(Fault(point, edge, epoch=epoch))
            held = ask(self._in_doubt)
            seconds = self._whole(epoch + 1)
            sizes.append(self._size())
            found.append(Killed(name, held, seconds, _more(sizes)))
        self._check()
        return found

    def _script(self, epochs: int) -> Script:
        folder = self.place.folder / self.place.job / "restarts"
        folder.mkdir(parents=True, exist_ok=True)
        return Script(self.place.job, folder, {self.sink.name: self.sink}, self.batches[:epochs], chunk=_CHUNK)

    def _kill(self, fault: Fault) -> None:
        assert fault.epoch is not None
        script = self._script(fault.epoch + 1)
        trigger = FaultTrigger(fault, script.folder / f"{fault}.fired")
        code = ended(start(lambda: run_driver(script, trigger)))
        if code != KILLED:
            raise Fatal(f"a driver was to die {fault}, and ended {code}", why="its own lines say why")

    def _whole(self, epochs: int) -> float:
        """Run a driver to the end of these epochs; return how long it took to complete one."""
        script = self._script(epochs)
        clock = _Clock(script.folder / f"{epochs}.complete")
        began = time.monotonic()
        code = ended(start(lambda: run_driver(script, clock)))
        if code != 0:
            raise Fatal(f"a driver without a fault ended {code}", why="its own lines say why")
        return clock.moment - began

    def _in_doubt(self) -> int:
        return in_doubt(self._script(0))[self.sink.name]

    def _size(self) -> int | None:
        return ask(lambda: self.target.size(self.place))

    def _check(self) -> None:
        expected = sum(table.num_rows for batch in self.batches for table in batch)
        found = ask(lambda: count(self.target, self.place, expected))
        if found != expected:
            raise Fatal(f"after kills a reader sees {found:,} rows of {expected:,}", next="report this: it is a bug")


class _Clock:
    """Keeps the moment of the first complete epoch in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def moment(self) -> float:
        return float(self._file.read_text())

    def __call__(self, event: Event) -> None:
        if (event.name, event.edge) == ("complete", "after") and not self._file.exists():
            self._file.write_text(repr(time.monotonic()))

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        """Participants are not of interest."""


def _more(sizes: Sequence[int | None]) -> int | None:
    """Return by how much more the last step grew than the second one."""
    _, first, second, *_, before, last = [*sizes[:3], *sizes[-2:]]
    if None in (first, second, before, last):
        return None
    return (last - before) - (second - first)  # type: ignore[operator]
