"""A job's config bound to its sinks: what its stream and its batch runs share."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from exactsink.commit import Retry
from exactsink.config import JobConfig
from exactsink.coordinator import Coordinator
from exactsink.events import Events, Subscriber
from exactsink.home import Home
from exactsink.journal.journal import Journal
from exactsink.pause import pause
from exactsink.promise import check_promise
from exactsink.sinks import Sink
from exactsink.spark.one_pass import OnePass
from exactsink.spark.preflight import check_executors, check_sinks, refuse_errors
from exactsink.spark.routes import Passes, Route, Routed
from exactsink.state import Heartbeat

__all__ = ["BoundJob"]

_COMMIT_ATTEMPTS = 8


class BoundJob:
    """A job that can look at frames, and make drivers."""

    def __init__(self, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber] = ()) -> None:
        self.config = config
        self.sinks = sinks
        self.failure: BaseException | None = None
        """What ended the last query from within `foreachBatch`; Spark itself only keeps its text."""
        self.epochs_done = 0
        """How many epochs this process has finished, over all its queries."""
        self.home = Home.of(config)
        self.events = Events(config.job.name, subscribers)
        self._driver: Coordinator | None = None
        self._heartbeat: Heartbeat | None = None

    def coordinator(self, home: Home | None = None, journal: Journal | None = None) -> Coordinator:
        """Make a driver that has not claimed yet, in place of the last one; `home` is a batch run's."""
        self.close()
        home = home or self.home
        home.folder.mkdir(parents=True, exist_ok=True)
        self._heartbeat = Heartbeat(home.state())
        self._driver = Coordinator(
            home.job,
            self.sinks,
            journal or home.journal(pause),
            self.events,
            driver=f"{platform.node()}:{os.getpid()}",
            retry=Retry(_COMMIT_ATTEMPTS, pause),
            save_state=self._heartbeat.write,
        )
        return self._driver

    def close(self) -> None:
        """Let go of the sinks' connections, once the query has ended. Rolls nothing back."""
        driver, self._driver = self._driver, None
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.close()
        if driver is not None:
            driver.close()

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
