"""A job on Spark: its sinks, and the two ways that data enters: a stream, or batch runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from exactsink.contract import ConfigError
from exactsink.job.commands import Commands
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.guarantees import check_batch_guarantee
from exactsink.job.history import JobHistory
from exactsink.job.registry import Registry, installed_plugins
from exactsink.observe import Observer
from exactsink.observe import subscribers as observers_of
from exactsink.observe.progress import EpochLines
from exactsink.protocol.events import Events, Subscriber
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.sinks import Sink
from exactsink.spark.batch import RunResult, known_run, write_run
from exactsink.spark.errors import refuse_connect
from exactsink.spark.modules import load_route
from exactsink.spark.preflight import Preflight, preflight
from exactsink.spark.query import Query
from exactsink.spark.routes import Route
from exactsink.toolkit.waiting import backoff

__all__ = ["Job"]


class Job:
    """Sinks that are committed together, fed by one streaming query or by batch runs.

    `Job.from_toml("job.toml").start(df)` starts the query; `df.writeStream.foreachBatch(job.foreach_batch())` is the
    same by hand, with the job's own checkpoint as `checkpointLocation`; `job.write(df, run="2026-11-20")` writes a run.
    """

    def __init__(self, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber] = ()) -> None:
        self.config = config
        self.sinks = sinks
        self._subscribers: tuple[Subscriber, ...] = (EpochLines(), *subscribers)
        self._observers: tuple[Observer, ...] = ()
        self._query: Query | None = None

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], subscribers: Sequence[Subscriber] = ()) -> Job:
        """Read a job's file and bind its sinks. Starts nothing. Raises ConfigError with the file and line."""
        config, document = load_config(path)
        registry = Registry(installed_plugins())
        with Commands(config.file).named():
            return cls(config, bind_sinks(config, document, registry), (registry.send, *subscribers))

    def start(self, frame: DataFrame, route: Route | None = None) -> Query:
        """Check every sink, claim the job, finish what an earlier driver left, and start the query.

        Without `route` every sink gets the frame; with it, each gets the one that the route names for it. Raises
        PreflightError, LineageError, ConfigError, InDoubtError or Retryable before Spark reads a row.
        """
        with Commands(self.config.file).named():
            refuse_connect("start")
            if not frame.isStreaming:
                raise ConfigError("start takes a streaming frame", next="read it with spark.readStream, or use write")
            route = route or load_route(self.config)
            found = self._checked(frame, route)
            self.end_query()
            self._query = Query(self.config, self.sinks, self.events, route, found.passes)
            self._query.start(frame)
            return self._query

    def foreach_batch(self, route: Route | None = None) -> Query:
        """Return the function for a hand-made query; it claims the job in its first call of every query run."""
        with Commands(self.config.file).named():
            refuse_connect("foreach_batch")
            self._observe()
            self.end_query()
            self._query = Query(self.config, self.sinks, self.events, route or load_route(self.config))
            return self._query

    def write(self, frame: DataFrame, run: str, route: Route | None = None) -> RunResult:
        """Write a frame into all sinks as the batch run of this name, once: a known run changes nothing.

        Returns when every row is durable and visible in every sink. Runs have a history each: they come in any order,
        and several at a time. Raises as `start` does; after any error, calling again is safe.
        """
        with Commands(self.config.file, run).named():
            if frame.isStreaming:
                raise ConfigError("write takes a batch frame", next="read it with spark.read, or use start")
            self._observe()
            route = route or load_route(self.config)
            history = JobHistory.of(self.config, run)
            known = known_run(history)
            if known is not None:
                self.events.report("run_known", run=run)
                return known
            check_batch_guarantee(self.sinks)
            passes = self._checked(frame, route).passes
            return write_run(history, self.sinks, self._events_of(history), frame, passes, self.config.job.restarts)

    def preflight(self, frame: DataFrame, route: Route | None = None) -> Preflight:
        """Look at everything that could stop the job, without a row written."""
        with Commands(self.config.file).named():
            return preflight(self.config, self.sinks, frame, route or load_route(self.config))

    def journal(self) -> Journal:
        """Open the stream's journal; the caller closes it."""
        return JobHistory.of(self.config).journal(backoff)

    @property
    def events(self) -> Events:
        """The job's events, reported to all who subscribed."""
        return self._events_of(JobHistory.of(self.config))

    def end_query(self) -> None:
        """End the last query's driver: another one may follow. Idempotent."""
        if self._query is not None:
            self._query.close()

    def check_fenced(self) -> None:
        """Raise Fenced when another driver has claimed the job since its last query did."""
        if self._query is not None:
            self._query.check_fenced()

    def abandon(self) -> None:
        """Record that the last query's driver has ended, wherever it is: the process ends now."""
        if self._query is not None:
            self._query.abandon()

    def close(self) -> None:
        """Let go of all that the job holds, once its last query or run has ended. Rolls nothing back. Idempotent."""
        self.end_query()
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.close()

    def _events_of(self, history: JobHistory) -> Events:
        heard: tuple[Subscriber, ...] = (*self._subscribers, *self._observers, history.last_times())
        return Events(history.job, heard, history.commands.typed)

    def _checked(self, frame: DataFrame, route: Route | None) -> Preflight:
        self._observe()
        found = preflight(self.config, self.sinks, frame, route)
        found.refuse()
        found.report_to(self.events, self.sinks)
        return found

    def _observe(self) -> None:
        """Open what `[observe]` asks for, once, before the first event. Raises ConfigError."""
        if not self._observers:
            self._observers = tuple(observers_of(self.config.observe))
