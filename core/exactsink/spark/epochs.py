"""Take each batch of a job's query from Spark. Each batch is one epoch."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from exactsink.contract import Fenced, LineageError, Retryable
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.columns import check_columns
from exactsink.job.config import JobConfig
from exactsink.job.driver import Driver
from exactsink.job.history import JobHistory
from exactsink.protocol.coordinator import Batch
from exactsink.protocol.events import Events
from exactsink.protocol.sinks import Sink
from exactsink.spark.errors import not_on_the_querys_thread, tasks_of
from exactsink.spark.preflight import passes_of, preflight
from exactsink.spark.routes import BatchWrite, Passes, Route
from exactsink.spark.versions import jvm_of, query_run_of
from exactsink.toolkit.storage import is_object_url
from exactsink.toolkit.waiting import backoff

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Epochs"]

_PARK_MILLISECONDS = 60_000
_INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling a batch.\n: java.lang.InterruptedException"
"""The text by which Spark recognizes an interrupt in a Python error (`StreamExecution.isInterruptionException`). Before
4.0 it includes the line's end. Spark's pattern overflows the stack on the long text of a real error."""


class _Phase(Enum):
    """The state of a query's thread."""

    WAITING = "waiting"
    IN_BATCH = "in a batch"
    PARKED = "parked"
    """In a batch that does not begin, because the query is about to end."""


class Epochs:
    """The function that Spark calls for each batch, and the driver behind it.

    `Job.foreach_batch` returns it for a hand-made query. Each new run of the query makes a new claim, because an old
    run's thread can outlive its query. `passes` come from a preflight. Without them, every claim makes its own.
    """

    def __init__(
        self,
        config: JobConfig,
        sinks: Mapping[str, Sink],
        events: Events,
        route: Route | None,
        passes: Passes | None = None,
    ) -> None:
        self.failure: BaseException | None = None
        """The first error from within a batch of the query's newest run. Spark itself keeps only its text.
        Or the Fenced that ends a query between two batches: Spark does not see it."""
        self.done = 0
        """How many epochs this query has finished."""
        self._streaming: StreamingQuery | None = None
        self.ending = False
        """Whether the query is about to end. Then the next batch does not begin, but parks."""
        self.last_epoch: int | None = None
        self._phase = _Phase.WAITING
        self._config = config
        self._sinks = sinks
        self._events = events
        self._route = route
        self._passes = passes
        self._preflighted = passes is not None
        self._checkpoint = Checkpoint(config.checkpoint)
        self._history = JobHistory.of(config)
        self._driver: Driver | None = None
        self._run_id: str | None = None
        self._ended_runs: set[str | None] = set()
        self._runs = threading.Lock()

    def start(self, frame: DataFrame) -> StreamingQuery:
        """Claim the job, finish the work that an earlier driver left, and start Spark's query over the frame."""
        self._claim_early()
        job = self._config.job
        writer = frame.writeStream.foreachBatch(self).queryName(job.name).outputMode(job.output_mode)
        writer = writer.option("checkpointLocation", _for_spark(job.checkpoint))
        if job.trigger == "available_now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=job.trigger)
        self._streaming = writer.start()
        return self._streaming

    def is_in_epoch(self) -> bool:
        """Return whether an epoch runs, or Spark has not recorded the last one yet."""
        if self._phase is not _Phase.WAITING or self.last_epoch is None or self._driver is None:
            return self._phase is _Phase.IN_BATCH
        return not self._checkpoint.is_epoch_done(self.last_epoch, self._driver.journal.log)

    def in_doubt(self) -> Mapping[str, int]:
        """Count each sink's participants of the last decided epoch, if no driver has recorded it as complete.

        It uses this driver's memory and the state file, and queries no store.
        """
        decision = None if self._driver is None else self._driver.journal.log.decision
        if decision is None:
            return {}
        state = self._history.last_state()
        is_complete = state is not None and state.complete_epoch == decision.epoch
        return {name: 0 if is_complete else len(decision.committables(name)) for name in self._sinks}

    def is_parked(self) -> bool:
        """Return whether a batch waits, without beginning, until its query is stopped."""
        return self._phase is _Phase.PARKED

    def abandon(self) -> None:
        """Record that the driver has ended, even in the middle of an epoch: the process ends now. Closes nothing."""
        if self._driver is not None:
            self._driver.heartbeat.close()

    def close(self) -> None:
        """Record that the driver has ended, and close the sinks' connections. Rolls nothing back. Idempotent."""
        if self._driver is not None:
            self._driver.close()

    def check_fenced(self) -> None:
        """Raise Fenced if another driver has claimed the job since this query did."""
        if self._driver is not None:
            self._driver.check_fenced()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch from Spark. Every error is raised, because Spark would otherwise record the batch as done."""
        run_id: str | None = None
        self._phase = _Phase.IN_BATCH
        if self.ending:
            self._park(frame)
        try:
            if (found := query_run_of(frame.sparkSession)) is None:
                raise not_on_the_querys_thread()
            query_id, run_id = found
            self._begin(run_id)
            epoch = self._run(query_id, frame, batch_id)
        except BaseException as error:
            self._history.commands.name(error)
            with self._runs:
                if run_id not in self._ended_runs:  # else `failure` belongs to a newer run
                    self.failure = self.failure or error
            raise
        else:
            with self._runs:
                if run_id not in self._ended_runs:
                    self.last_epoch = epoch
                    self.done += 1
        finally:
            self._phase = _Phase.WAITING

    def _park(self, frame: DataFrame) -> None:
        """Wait in the query's own thread until the stop interrupts it. Raise the error that Spark takes for a stop."""
        self._phase = _Phase.PARKED
        jvm = jvm_of(frame.sparkSession)
        with suppress(Py4JError):
            while True:
                jvm.java.lang.Thread.sleep(_PARK_MILLISECONDS)
        raise RuntimeError(_INTERRUPTED) from None

    def _begin(self, run_id: str) -> None:
        """Replace the query's earlier run by a new run. Raises Fenced for a run that has ended."""
        with self._runs:
            if run_id in self._ended_runs:
                raise Fenced(
                    f"run {run_id} of the query has ended, but sends another batch",
                    why="a newer run of the same query has claimed the job meanwhile",
                    next="leave the job to that run",
                )
            if self._run_id is not None and run_id != self._run_id:
                self._ended_runs.add(self._run_id)
                self.close()
                self._driver = self.failure = self.last_epoch = None
            self._run_id = run_id

    def _run(self, query_id: str, frame: DataFrame, batch_id: int) -> int:
        driver, checkpoint = self._driver_for(query_id, frame), self._checkpoint
        self._check_called(driver, batch_id)
        if self.last_epoch is not None:
            driver.coordinator.returned(self.last_epoch)
        passes = self._passes_for(frame)
        epoch = driver.journal.log.base + batch_id
        # Before its first batch has run, nobody knows whether the query keeps state.
        with closing(BatchWrite(passes, frame, keeps_state=batch_id == 0 or checkpoint.is_stateful())) as write:
            fingerprint, ends = checkpoint.fingerprint(batch_id), checkpoint.source_ends(batch_id)
            previous = checkpoint.previous(batch_id)
            schemas, columns = passes.schemas(), passes.columns()
            check_columns(self._sinks, driver.journal.log, epoch, columns)
            driver.coordinator.run_epoch(Batch(epoch, fingerprint, schemas, write, ends, previous, columns))
        if not write.ran and checkpoint.is_stateful():
            with tasks_of(epoch):
                frame.write.format("noop").mode("overwrite").save()  # else the state store lacks this batch's version
        return epoch

    def _check_called(self, driver: Driver, batch_id: int) -> None:
        """Refuse a batch if this function did not get the batch before it, or its error was caught outside."""
        try:
            self._checkpoint.check_called(driver.journal.log, batch_id, ran=self.last_epoch is not None)
        except LineageError as missed:
            driver.check_fenced()
            raise missed from self.failure
        if self.failure is not None:
            failed = str(self.failure).partition("\n  next: ")[0]
            raise Retryable(
                f"batch {batch_id} comes after a call that failed: {failed}",
                why="the function that calls exactsink's caught that error, so Spark continued as if there were none",
                next="let its errors end the query; then start the query again",
            ) from self.failure

    def _passes_for(self, frame: DataFrame) -> Passes:
        """Return the passes of the frame's schema. They are analyzed once for all batches of one schema."""
        if self._passes is None or not self._passes.fits(frame):
            self._passes = passes_of(self._config, self._sinks, frame, self._route)
        return self._passes

    def _driver_for(self, query_id: str, frame: DataFrame) -> Driver:
        """Return the driver of the newest run, which this batch belongs to."""
        if query_id != self._checkpoint.query_id():
            place = _for_spark(self._config.job.checkpoint)
            raise LineageError(
                f"query {query_id} does not write its checkpoint to {place}",
                why="the journal is beside the checkpoint, and the two must belong together",
                next=f"give the query .option('checkpointLocation', '{place}')",
            )
        if self._driver is None:
            if not self._preflighted:
                found = preflight(self._config, self._sinks, frame, self._route)
                found.refuse()
                found.report_to(self._events, self._sinks)
                self._passes = found.passes
            return self._started(query_id)
        return self._driver

    def _claim_early(self) -> None:
        """Claim before the query starts if the checkpoint knows the query. A new query's first batch claims the job."""
        query_id = self._checkpoint.query_id()
        if query_id is not None:
            self._started(query_id)
            return
        with closing(self._history.journal(backoff)) as journal:
            self._checkpoint.check_bound(journal.read())

    def _started(self, query_id: str) -> Driver:
        """Claim the job with a new driver, which replaces the last one."""
        self.close()
        driver = self._driver = Driver(self._history, self._sinks, self._events)
        driver.heartbeat.alive = self.is_active
        driver.heartbeat.on_newer = partial(self._end_if_fenced, driver)
        journal = driver.journal
        driver.coordinator.start(query_id, lambda epoch: self._checkpoint.is_epoch_done(epoch, journal.log))
        return driver

    def _end_if_fenced(self, driver: Driver) -> None:
        """End a query that waits for rows once another driver has claimed the job. A batch notices that by itself.

        A hand-made query is left to its program, which would not learn why it ended.
        """
        streaming = self._streaming
        if streaming is None or self._phase is not _Phase.WAITING:
            return
        try:
            driver.check_fenced()
        except Fenced as fenced:
            self._history.commands.name(fenced)
            self.failure = self.failure or fenced
            driver.coordinator.close()
            with suppress(Py4JError, OSError):
                streaming.stop()

    def is_active(self) -> bool:
        try:
            return self._streaming is None or self._streaming.isActive
        except (Py4JError, OSError):  # the JVM is gone, and its query with it
            return False


def _for_spark(checkpoint: str) -> str:
    """Return the checkpoint's full URL, because Spark looks for a bare path in `fs.defaultFS`, not on this machine."""
    return checkpoint if is_object_url(checkpoint) else f"file://{checkpoint}"
