"""What happens to the job, and when: drawn from a seed, so that a number plays it again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from exactsink.testing import Fault

AT_START = ("claim", "recommit", "sweep")
IN_EPOCH = ("open_epoch", "vote", "decide", "complete", "return")
COLD_EVERY = 6
"""Each sixth driver has a JVM of its own, which dies with it."""


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL at a named point, some epochs on; at any moment, some seconds on, where it names none."""

    point: str
    edge: Literal["before", "after"]
    epochs: int
    seconds: float
    cold: bool

    def faults(self, complete: int) -> Sequence[Fault]:
        """Return what the driver does to itself; `complete` is the job's last complete epoch."""
        if not self.point:
            return ()
        epoch = None if self.point in AT_START else complete + self.epochs
        return (Fault(self.point, self.edge, "kill", epoch),)

    def __str__(self) -> str:
        return f"{self.edge} {self.point}" if self.point else "at any moment"


@dataclass(frozen=True, slots=True)
class Restart:
    """A server ends, orderly or as in a crash, and is back after so many seconds."""

    server: Literal["postgres", "kafka", "s3"]
    crash: bool
    pause: float
    down: float


def kills(seed: int, sinks: Sequence[str], seconds: float) -> Iterator[Kill]:
    """Draw kills for ever, `seconds` apart or so: every named point before any comes again, and moments between."""
    drawn, count = random.Random(f"kills {seed}"), 0
    points = [*AT_START, *IN_EPOCH, *(f"commit:{sink}" for sink in sinks)]
    while True:
        for point, edge in drawn.sample(list(product(points, ("before", "after"))), 2 * len(points)):
            for named in (point, ""):
                count += 1
                wait = drawn.uniform(0.4, 1.6) * seconds
                yield Kill(named, edge, drawn.randint(1, 8), wait, not named and count % COLD_EVERY == 0)  # type: ignore[arg-type]


def restarts(seed: int, seconds: float) -> Iterator[Restart]:
    """Draw restarts for ever, each some `seconds` after the one before; the servers take turns."""
    drawn = random.Random(f"restarts {seed}")
    while True:
        for server in drawn.sample(["postgres", "kafka", "s3"], 3):
            crash = server != "s3" and drawn.random() < 0.5
            yield Restart(server, crash, drawn.uniform(0.6, 1.4) * seconds, drawn.uniform(0, 4))  # type: ignore[arg-type]
