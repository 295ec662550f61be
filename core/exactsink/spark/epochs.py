"""What Spark calls for each batch of a job's query: each batch is one epoch."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from enum import Enum
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
"""What Spark looks for in the text of a Python error (`StreamExecution.isInterruptionException`), before 4.0 with that
end of a line. Its pattern overflows the stack on the long text of a real one."""


class _Phase(Enum):
    """Where a query's thread is."""

    WAITING = "waiting"
    IN_BATCH = "in a batch"
    PARKED = "parked"
    """In a batch that is not begun, because the query is to end."""


class Epochs:
    """The function that Spark calls for each batch, and the driver behind it.

    `Job.foreach_batch` returns it for a hand-made query to call. A new query run is a new claim: an old run's thread
    can outlive its query. `passes` are what preflight gave; without them every claim makes its own preflight.
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
        """What ended the query's newest run from within a batch, its first error; Spark itself only keeps its text."""
        self.done = 0
        """How many epochs this query has finished."""
        self._streaming: StreamingQuery | None = None
        self.ending = False
        """No batch begins any more: the next one parks."""
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
        """Claim, finish what an earlier driver left, and start Spark's query over the frame."""
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

        From this driver's memory and the state file: no store is queried.
        """
        decision = None if self._driver is None else self._driver.journal.log.decision
        if decision is None:
            return {}
        state = self._history.last_state()
        is_complete = state is not None and state.complete_epoch == decision.epoch
        return {name: 0 if is_complete else len(decision.committables(name)) for name in self._sinks}

    def is_parked(self) -> bool:
        """Return whether a batch waits, not begun, for the stop of its query."""
        return self._phase is _Phase.PARKED

    def abandon(self) -> None:
        """Record that the driver has ended, wherever it is: the process ends now. Closes nothing."""
        if self._driver is not None:
            self._driver.heartbeat.close()

    def close(self) -> None:
        """Record that the driver has ended, and close the sinks' connections. Rolls nothing back. Idempotent."""
        if self._driver is not None:
            self._driver.close()

    def check_fenced(self) -> None:
        """Raise Fenced when another driver has claimed the job since this query did."""
        if self._driver is not None:
            self._driver.check_fenced()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Take a batch from Spark. Whatever it raises goes on: else Spark would record the batch as done."""
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
                if run_id not in self._ended_runs:  # a newer run's failure, not this thread's
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
        """Let the query's own thread wait for the stop that interrupts it, and raise what Spark knows as a stop."""
        self._phase = _Phase.PARKED
        jvm = jvm_of(frame.sparkSession)
        with suppress(Py4JError):
            while True:
                jvm.java.lang.Thread.sleep(_PARK_MILLISECONDS)
        raise RuntimeError(_INTERRUPTED) from None

    def _begin(self, run_id: str) -> None:
        """Let a new run of the query take the place of the one before. Raises Fenced for a run that has ended."""
        with self._runs:
            if run_id in self._ended_runs:
                raise Fenced(
                    f"run {run_id} of the query has ended, and comes with another batch",
                    why="a newer run of the same query has claimed the job since",
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
        # Before the first batch has run, nothing shows yet whether the query keeps state.
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
        """Refuse a batch when the one before it was not given to this function, or its error was caught around it."""
        try:
            self._checkpoint.check_called(driver.journal.log, batch_id, ran=self.last_epoch is not None)
        except LineageError as missed:
            driver.check_fenced()
            raise missed from self.failure
        if self.failure is not None:
            failed = str(self.failure).partition("\n  next: ")[0]
            raise Retryable(
                f"batch {batch_id} comes after a call that failed: {failed}",
                why="the function around exactsink's caught that error, and Spark goes on as if there were none",
                next="let its errors end the query; then start the query again",
            ) from self.failure

    def _passes_for(self, frame: DataFrame) -> Passes:
        """Analyze once for all batches of one schema."""
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
        """Claim before the query starts if the checkpoint knows its query; a new one is claimed by its first batch."""
        query_id = self._checkpoint.query_id()
        if query_id is not None:
            self._started(query_id)
            return
        with closing(self._history.journal(backoff)) as journal:
            self._checkpoint.check_bound(journal.read())

    def _started(self, query_id: str) -> Driver:
        """Claim the job with a new driver, in place of the last one."""
        self.close()
        driver = self._driver = Driver(self._history, self._sinks, self._events)
        driver.heartbeat.alive = self.is_active
        journal = driver.journal
        driver.coordinator.start(query_id, lambda epoch: self._checkpoint.is_epoch_done(epoch, journal.log))
        return driver

    def is_active(self) -> bool:
        try:
            return self._streaming is None or self._streaming.isActive
        except (Py4JError, OSError):  # the JVM is gone, and its query with it
            return False


def _for_spark(checkpoint: str) -> str:
    """Return a checkpoint's place in full: Spark looks for a bare path in `fs.defaultFS`, not where the journal is."""
    return checkpoint if is_object_url(checkpoint) else f"file://{checkpoint}"
