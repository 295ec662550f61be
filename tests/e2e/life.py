"""One driver life on a JVM of its own: `exactsink run`, killed with SIGKILL at a protocol point.

`python life.py JOB.toml POINT EDGE EPOCH [AFTER]`: AFTER names a point whose `after` must have come first.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from exactsink.cli.main import main
from exactsink.cli.run import run
from exactsink.events import Event
from exactsink.testing import Fault
from exactsink.testing.faults import FaultTrigger


class _Ordered:
    """Holds a fault back until another point of its epoch is passed, so that a kill lies between the two for sure."""

    def __init__(self, trigger: FaultTrigger, fault: Fault, first: str) -> None:
        self._trigger = trigger
        self._fault = fault
        self._first = first
        self._passed = threading.Event()

    def __call__(self, event: Event) -> None:
        if (event.name, event.edge, event.epoch) == (self._first, "after", self._fault.epoch):
            self._passed.set()
        if (event.name, event.edge, event.epoch) == (self._fault.point, self._fault.edge, self._fault.epoch):
            self._passed.wait()
        self._trigger(event)


if __name__ == "__main__":
    job, point, edge, epoch, *first = sys.argv[1:]
    if not point:
        sys.exit(main(["run", job]))
    fault = Fault(point, edge, "kill", int(epoch))  # type: ignore[arg-type]
    trigger = FaultTrigger(fault, Path(job).with_suffix(f".{point}.fired"))
    run(job, [_Ordered(trigger, fault, first[0]) if first else trigger])
