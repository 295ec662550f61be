"""One OpenTelemetry span per epoch, with a child for every phase and every sink's commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from exactsink.contract import Event
from exactsink.observe.metrics import PHASE, Measurement

__all__ = ["EpochSpans"]


@dataclass(frozen=True, slots=True)
class _Open:
    """An epoch's open span, and its begin (Unix nanoseconds)."""

    epoch: int
    span: Span
    began: int


class EpochSpans:
    """Keep a span from an epoch's first point to its return. Each job has at most one open span.

    Other events become events of the span. An unfinished epoch ends as an error: with `fenced`, with the next claim or
    epoch, or with `close`. An epoch that is committed again at start has its own span.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}

    def add(self, event: Event, measurements: Sequence[Measurement]) -> None:
        """Add an event, with its measurements, to its job's span."""
        with self._lock:
            if event.edge == "before":
                self._before(event)
            for measured in measurements:
                if measured.metric is PHASE:
                    _, phase, sink = measured.labels
                    self._phase(event, phase, sink, measured.value)
            if (event.name, event.edge) in {("return", "before"), ("recommit", "after")}:
                self._end(event.job)
            elif not event.edge:
                self._add_event(event)

    def close(self) -> None:
        """End all open spans as unfinished."""
        with self._lock:
            for job in list(self._open):
                self._end(job, "the job ended")

    def _before(self, event: Event) -> None:
        opened = self._open.get(event.job)
        if event.name == "claim":
            self._end(event.job, "a new claim began")
        if event.epoch is None or (opened and opened.epoch == event.epoch):
            return
        self._end(event.job, "another epoch began")
        began = time.time_ns()
        span = self._tracer.start_span("exactsink.epoch", attributes=_attributes(event), start_time=began)
        self._open[event.job] = _Open(event.epoch, span, began)

    def _phase(self, event: Event, phase: str, sink: str, seconds: float) -> None:
        """Add a span for a phase that has just ended, as a child of its epoch's span, if there is one."""
        ended = time.time_ns()
        began = ended - int(seconds * 1e9)
        attributes = _attributes(event) | ({"exactsink.sink": sink} if sink else {})
        context = None
        opened = self._open.get(event.job)
        if opened is not None and opened.epoch == event.epoch:
            context = set_span_in_context(opened.span)
            began = max(began, opened.began)
        name = f"exactsink.{phase}"
        self._tracer.start_span(name, context, attributes=attributes, start_time=began).end(ended)

    def _add_event(self, event: Event) -> None:
        opened = self._open.get(event.job)
        if opened is None:
            return
        fields = {f"exactsink.{name}": _plain(value) for name, value in event.fields.items() if value is not None}
        opened.span.add_event(event.name, fields)
        if event.name == "fenced":
            self._end(event.job, "fenced")

    def _end(self, job: str, failure: str | None = None) -> None:
        opened = self._open.pop(job, None)
        if opened is None:
            return
        if failure is not None:
            opened.span.set_status(Status(StatusCode.ERROR, f"not finished: {failure}"))
        opened.span.end()


def _attributes(event: Event) -> dict[str, Any]:
    epoch = {} if event.epoch is None else {"exactsink.epoch": event.epoch}
    return {"exactsink.job": event.job, **epoch}


def _plain(value: Any) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)
