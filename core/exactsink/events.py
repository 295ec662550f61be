"""What happens, as named events: the protocol's points, each with a before and an after, and all else worth telling.

The same names serve logs, tests and fault injection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["POINTS", "Event", "Events", "Subscriber"]

POINTS = (
    "claim",
    "recommit",
    "sweep",
    "open_epoch",
    "write",
    "pre_commit",
    "vote",
    "decide",
    "commit:<sink>",
    "complete",
    "return",
)
"""The protocol's named points in their order; `write` and `pre_commit` happen in tasks."""

_LOG = logging.getLogger("exactsink")


@dataclass(frozen=True, slots=True)
class Event:
    """Tell one thing that happened. `edge` is empty where it is no protocol point. `fields` hold no secrets."""

    name: str
    job: str
    edge: Literal["before", "after", ""] = ""
    epoch: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        known = {"job": self.job, "epoch": self.epoch, **self.fields}
        told = (f"{name}={value}" for name, value in known.items() if value is not None)
        return " ".join([f"{self.name} {self.edge}".strip(), *told])


Subscriber = Callable[[Event], None]


class Events:
    """Tell a job's events to the log and to subscribers. A subscriber's exception is logged and changes nothing."""

    def __init__(self, job: str, subscribers: Sequence[Subscriber] = ()) -> None:
        self._job = job
        self._subscribers = tuple(subscribers)

    def tell(self, name: str, *, epoch: int | None = None, level: int = logging.INFO, **fields: Any) -> None:
        """Tell that something happened."""
        self._send(Event(name, self._job, "", epoch, fields), level)

    def edge(self, name: str, edge: Literal["before", "after"], epoch: int | None, **fields: Any) -> None:
        """Tell one side of a protocol point."""
        self._send(Event(name, self._job, edge, epoch, fields), logging.DEBUG)

    @contextmanager
    def point(self, name: str, epoch: int | None = None) -> Iterator[None]:
        """Tell a protocol point's two sides around its body; the after, with its duration, only when that succeeds."""
        started = time.monotonic()
        self.edge(name, "before", epoch)
        yield
        self.edge(name, "after", epoch, seconds=round(time.monotonic() - started, 6))

    def _send(self, event: Event, level: int) -> None:
        _LOG.log(level, "%s", event)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                _LOG.exception("a subscriber failed on %s", event)
