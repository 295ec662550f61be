"""A job's config bound to its sinks: what its stream and its batch runs share."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame

from exactsink.contract import Retryable
from exactsink.job.config import JobConfig
from exactsink.job.driver import coordinator_of
from exactsink.job.guarantees import check_guarantee
from exactsink.job.history import JobHistory
from exactsink.observe import Observer
from exactsink.observe import subscribers as observers_of
from exactsink.observe.state import Heartbeat
from exactsink.protocol.coordinator import Coordinator
from exactsink.protocol.events import Events, Subscriber
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import fenced_by
from exactsink.protocol.journal.records import Claim
from exactsink.protocol.sinks import Sink
from exactsink.spark.one_pass import OnePass
from exactsink.spark.preflight import check_executors, check_sinks, refuse_errors
from exactsink.spark.routes import Passes, Route, Routed
from exactsink.toolkit.waiting import backoff

__all__ = ["BoundJob", "Driver"]


@dataclass(frozen=True, slots=True)
class Driver:
    """A coordinator with its journal, and the heartbeat that says that it lives."""

    coordinator: Coordinator
    heartbeat: Heartbeat
    journal: Journal

    def close(self) -> None:
        """Return that the driver has ended, and let go of the sinks' connections. Rolls nothing back."""
        self.heartbeat.close()
        self.coordinator.close()
        self.journal.close()


class BoundJob:
    """A job that can look at frames, and make drivers."""

    def __init__(self, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber] = ()) -> None:
        self.config = config
        self.sinks = sinks
        self.history = JobHistory.of(config)
        self.events = Events(config.job.name, subscribers)
        self._subscribers = tuple(subscribers)
        self._observers: tuple[Observer, ...] = ()

    def observe(self) -> None:
        """Open what `[observe]` asks for, once, before the first event. Raises ConfigError."""
        if not self._observers:
            self._observers = tuple(observers_of(self.config.observe))
            self.events = Events(self.config.job.name, (*self._subscribers, *self._observers))

    def close(self) -> None:
        """Let go of what `observe` opened. Idempotent."""
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.close()

    def driver(self, history: JobHistory, journal: Journal) -> Driver:
        """Make a driver of one history that has not claimed yet; the caller closes it."""
        history.folder.mkdir(parents=True, exist_ok=True)
        heartbeat = Heartbeat(history.state())
        events = Events(history.job, (*self._subscribers, *self._observers))
        coordinator = coordinator_of(history, self.sinks, journal, events, heartbeat.write)
        return Driver(coordinator, heartbeat, journal)

    def check_standing(self, history: JobHistory, mine: Claim | None) -> None:
        """Raise Fenced when another driver has claimed since: to claim again would take the job away from it.

        A journal that does not answer just now says nothing: the next start reads it again.
        """
        if mine is None:
            return
        with closing(history.journal(backoff)) as journal, suppress(Retryable, OSError):
            fenced = fenced_by(journal.read(), mine)
            if fenced is not None:
                self.events.report("fenced", level=logging.WARNING, generation=mine.generation, by=fenced.why)
                raise fenced

    def journal(self) -> Journal:
        """Open the job's journal, beside its checkpoint or where its URL says."""
        return self.history.journal(backoff)

    def preflight(self, frame: DataFrame, route: Route | None) -> Passes:
        """Refuse what can't be kept, report what is promised, and give the passes, which the batches share."""
        check_guarantee(self.sinks, require=self.config.job.require, allow_early_rows=self.config.job.allow_early_rows)
        passes = self.passes(frame, route)
        findings = check_sinks(self.config.job.name, self.sinks, passes.schemas())
        refuse_errors(findings)
        for sink, found in findings.items():
            for finding in found:
                self.events.report("preflight_warning", sink=sink, message=finding.message, fix=finding.fix)
        check_executors(frame.sparkSession, self.sinks)
        self._report_guarantee()
        return passes

    def passes(self, frame: DataFrame, route: Route | None) -> Passes:
        """Analyze how frames like this one reach the sinks. Raises ConfigError."""
        if route is None:
            return OnePass(frame, self.sinks)
        return Routed(frame, self.sinks, route, self.config.job.fan_out)

    def _report_guarantee(self) -> None:
        for name, sink in self.sinks.items():
            self.events.report(
                "sink",
                sink=name,
                backend=sink.kind,
                strategy=sink.backend.strategy,
                guarantee=sink.backend.traits.guarantee,
                target=sink.backend.target,
            )
