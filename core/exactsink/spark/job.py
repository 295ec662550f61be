"""A job on Spark: its sinks, where its history is kept, and the two ways that data enters: a stream, or batch runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from exactsink.contract import ConfigError
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.registry import Registry, installed_plugins
from exactsink.protocol.coordinator import Coordinator
from exactsink.protocol.events import Subscriber
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Claim
from exactsink.protocol.sinks import Sink
from exactsink.spark.batch import RunResult, write_run
from exactsink.spark.bound import BoundJob, Driver
from exactsink.spark.routes import Route
from exactsink.spark.session import load_route
from exactsink.spark.stream import ForeachBatch

__all__ = ["Job"]


class Job(BoundJob):
    """Sinks that are committed together, fed by one streaming query or by batch runs.

    `Job.from_toml("job.toml").start(df)` starts the query; `df.writeStream.foreachBatch(job.foreach_batch())` is the
    same by hand, with the job's own checkpoint as `checkpointLocation`; `job.write(df, run="2026-11-20")` writes a run.
    """

    def __init__(self, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber] = ()) -> None:
        super().__init__(config, sinks, subscribers)
        self.failure: BaseException | None = None
        """What ended the last query from within `foreachBatch`; Spark itself only keeps its text."""
        self.epochs_done = 0
        """How many epochs this process has finished, over all its queries."""
        self._driver: Driver | None = None
        self._claim: Claim | None = None
        self._query: StreamingQuery | None = None

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], subscribers: Sequence[Subscriber] = ()) -> Job:
        """Read a job's file and bind its sinks. Starts nothing. Raises ConfigError with the file and line."""
        config, document = load_config(path)
        registry = Registry(installed_plugins())
        return cls(config, bind_sinks(config, document, registry), (registry.send, *subscribers))

    def start(self, frame: DataFrame, route: Route | None = None) -> StreamingQuery:
        """Check every sink, claim the job, finish what an earlier driver left, and start the query.

        Without `route` every sink gets the frame; with it, each gets the one that the route names for it. Raises
        PreflightError, LineageError, ConfigError, InDoubt or Retryable before Spark reads a row.
        """
        _refuse_connect("start")
        if not frame.isStreaming:
            raise ConfigError("start takes a streaming frame", next="read it with spark.readStream, or use write")
        self.observe()
        route = route or load_route(self.config.job.route)
        passes = self.preflight(frame, route)
        self.failure = self._query = None
        body = ForeachBatch(self, route, passes)
        body.claim_early()
        writer = frame.writeStream.foreachBatch(body).queryName(self.config.job.name)
        writer = writer.option("checkpointLocation", str(self.config.checkpoint))
        writer = writer.outputMode(self.config.job.output_mode)
        trigger = self.config.job.trigger
        if trigger == "available_now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=trigger)
        query = writer.start()
        self._query = query
        return query

    def foreach_batch(self, route: Route | None = None) -> Callable[[DataFrame, int], None]:
        """Return the function for a hand-made query; it claims the job in its first call of every query run."""
        self.observe()
        return ForeachBatch(self, route or load_route(self.config.job.route))

    def write(self, frame: DataFrame, run: str, route: Route | None = None) -> RunResult:
        """Write a frame into all sinks as the batch run of this name, once: a known run changes nothing.

        Returns when every row is durable and visible in every sink. Runs have a history each: they come in any order,
        and several at a time. Raises as `start` does; after any error, calling again is safe.
        """
        _refuse_connect("write")
        if frame.isStreaming:
            raise ConfigError("write takes a batch frame", next="read it with spark.read, or use start")
        self.observe()
        return write_run(self, frame, run, route or load_route(self.config.job.route))

    def coordinator(self, journal: Journal) -> Coordinator:
        """Make the stream's driver, which has not claimed yet, in place of the last one."""
        self.end_query()
        self._driver = self.driver(self.history, journal)
        self._driver.heartbeat.alive = self._is_active
        return self._driver.coordinator

    def close(self) -> None:
        """Let go of all that the job holds, once its last query or run has ended. Rolls nothing back. Idempotent."""
        self.end_query()
        super().close()

    def end_query(self) -> None:
        """Return that the query's driver has ended, and let go of the sinks' connections; another query may follow."""
        driver, self._driver = self._driver, None
        if driver is not None:
            self._claim = driver.coordinator.last_claim
            driver.close()

    def check_fenced(self) -> None:
        """Raise Fenced when another driver has claimed the job since its last query did."""
        self.check_standing(self.history, self._claim)

    def _is_active(self) -> bool:
        try:
            return self._query is None or self._query.isActive
        except (Py4JError, OSError):  # the JVM is gone, and its query with it
            return False


def _refuse_connect(what: str) -> None:
    if is_remote():
        raise ConfigError(
            f"{what} needs a classic session",
            why="Spark Connect runs foreachBatch on the server, without the query's id",
            next="run the job in a classic session (spark-submit, or exactsink run)",
        )
