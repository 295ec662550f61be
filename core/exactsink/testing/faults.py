"""Faults at named protocol points: a process kills or stops itself there, and leaves a file that proves it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from exactsink.contract import Event

__all__ = ["Fault", "FaultTrigger", "FaultTriggers", "Trigger"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Kill (SIGKILL) or stall (SIGSTOP) the first process that reaches a point's edge, optionally in one epoch.

    Participants reach `write` and `pre_commit`; the driver reaches all other points.
    """

    point: str
    edge: Literal["before", "after"]
    action: Literal["kill", "stall"] = "kill"
    epoch: int | None = None

    def __str__(self) -> str:
        return f"{self.action}-{self.edge}-{self.point}" + ("" if self.epoch is None else f"-e{self.epoch}")


class Trigger(Protocol):
    """Receives a driver run's events and its participants' probes."""

    def __call__(self, event: Event) -> None:
        """Receive an event of the driver."""
        ...

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        """Receive a point that a participant has reached."""
        ...


class FaultTrigger:
    """Fire one fault once, across all processes that share its mark file. Receives events, and participants' probes."""

    def __init__(self, fault: Fault, mark: Path) -> None:
        self._fault = fault
        self._mark = mark

    @property
    def fired(self) -> bool:
        return self._mark.exists()

    def __call__(self, event: Event) -> None:
        if event.edge:
            self.probe(event.name, event.edge, event.epoch)

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        """Fire if this is the fault's point."""
        fault = self._fault
        if (point, edge) != (fault.point, fault.edge) or fault.epoch not in (None, epoch):
            return
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        # Sent to this thread: in a process with several, another thread might take the signal, and this one run on.
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)


class FaultTriggers:
    """Fire several faults in one driver run, each once."""

    def __init__(self, triggers: Sequence[FaultTrigger]) -> None:
        self._triggers = tuple(triggers)

    def __call__(self, event: Event) -> None:
        for trigger in self._triggers:
            trigger(event)

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        for trigger in self._triggers:
            trigger.probe(point, edge, epoch)
