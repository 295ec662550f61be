"""A job's config bound to its sinks: what its stream and its batch runs share."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame

from exactsink.config import JobConfig
from exactsink.coordinator import Coordinator
from exactsink.driver import coordinator_of
from exactsink.errors import Retryable
from exactsink.events import Events, Subscriber
from exactsink.home import Home
from exactsink.instrument import Observer
from exactsink.instrument import subscribers as observers_of
from exactsink.journal.journal import Journal
from exactsink.journal.log import fenced_by
from exactsink.journal.records import Claim
from exactsink.pause import pause
from exactsink.promise import check_promise
from exactsink.sinks import Sink
from exactsink.spark.one_pass import OnePass
from exactsink.spark.preflight import check_executors, check_sinks, refuse_errors
from exactsink.spark.routes import Passes, Route, Routed
from exactsink.state import Heartbeat

__all__ = ["BoundJob", "Driver"]


@dataclass(frozen=True, slots=True)
class Driver:
    """A coordinator with its journal, and the heartbeat that says that it lives."""

    coordinator: Coordinator
    heartbeat: Heartbeat
    journal: Journal

    def close(self) -> None:
        """Say that the driver has ended, and let go of the sinks' connections. Rolls nothing back."""
        self.heartbeat.close()
        self.coordinator.close()
        self.journal.close()


class BoundJob:
    """A job that can look at frames, and make drivers."""

    def __init__(self, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber] = ()) -> None:
        self.config = config
        self.sinks = sinks
        self.home = Home.of(config)
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

    def driver(self, home: Home, journal: Journal) -> Driver:
        """Make a driver of one history that has not claimed yet; the caller closes it."""
        home.folder.mkdir(parents=True, exist_ok=True)
        heartbeat = Heartbeat(home.state())
        events = Events(home.job, (*self._subscribers, *self._observers))
        coordinator = coordinator_of(home, self.sinks, journal, events, heartbeat.write)
        return Driver(coordinator, heartbeat, journal)

    def check_standing(self, home: Home, mine: Claim | None) -> None:
        """Raise Fenced when another driver has claimed since: to claim again would take the job away from it.

        A journal that does not answer just now says nothing: the next start reads it again.
        """
        if mine is None:
            return
        with closing(home.journal(pause)) as journal, suppress(Retryable, OSError):
            fenced = fenced_by(journal.read(), mine)
            if fenced is not None:
                self.events.tell("fenced", level=logging.WARNING, generation=mine.generation, by=fenced.why)
                raise fenced

    def journal(self) -> Journal:
        """Open the job's journal, beside its checkpoint or where its URL says."""
        return self.home.journal(pause)

    def preflight(self, frame: DataFrame, route: Route | None) -> Passes:
        """Refuse what can't be kept, tell what is promised, and give the passes, which the batches share."""
        check_promise(self.sinks, require=self.config.job.require, allow_early_rows=self.config.job.allow_early_rows)
        passes = self.passes(frame, route)
        findings = check_sinks(self.config.job.name, self.sinks, passes.schemas())
        refuse_errors(findings)
        for sink, found in findings.items():
            for finding in found:
                self.events.tell("preflight_warning", sink=sink, message=finding.message, fix=finding.fix)
        check_executors(frame.sparkSession, self.sinks)
        self._tell_promise()
        return passes

    def passes(self, frame: DataFrame, route: Route | None) -> Passes:
        """Analyze how frames like this one reach the sinks. Raises ConfigError."""
        if route is None:
            return OnePass(frame, self.sinks)
        return Routed(frame, self.sinks, route, self.config.job.fan_out)

    def _tell_promise(self) -> None:
        for name, sink in self.sinks.items():
            self.events.tell(
                "sink",
                sink=name,
                backend=sink.kind,
                strategy=sink.backend.strategy,
                guarantee=sink.backend.traits.guarantee,
                target=sink.backend.target,
            )
