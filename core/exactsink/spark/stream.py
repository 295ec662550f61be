"""A stream's way in: Spark calls per batch, and each batch is one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from exactsink.contract import ConfigError, LineageError, Retryable
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.config import JobConfig
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.spark.causes import task_error
from exactsink.spark.one_pass import Write
from exactsink.spark.routes import Passes, Route

__all__ = ["ExplainedWrite", "ForeachBatch", "Stream"]


class Stream(Protocol):
    """The job as its stream sees it."""

    config: JobConfig
    failure: BaseException | None
    epochs_done: int

    def journal(self) -> Journal: ...
    def coordinator(self, journal: Journal) -> Coordinator: ...
    def preflight(self, frame: DataFrame, route: Route | None) -> Passes: ...
    def passes(self, frame: DataFrame, route: Route | None) -> Passes: ...


class ForeachBatch:
    """What Spark calls per batch. A new query run is a new claim: an old run's thread can outlive its query.

    `passes` is what preflight gave; without it every claim makes its own preflight.
    """

    def __init__(self, job: Stream, route: Route | None, passes: Passes | None = None) -> None:
        self._job = job
        self._route = route
        self._checkpoint = Checkpoint(job.config.checkpoint)
        self._preflighted = passes is not None
        self._passes = passes
        self._run_id: str | None = None
        self._coordinator: Coordinator | None = None
        self._base = 0
        self._last_epoch: int | None = None

    def claim_early(self) -> None:
        """Claim before the query starts if the checkpoint knows its query; a new one is claimed by its first batch."""
        query_id = self._checkpoint.query_id()
        if query_id is not None:
            self._coordinator = self._started(query_id)
            return
        with closing(self._job.journal()) as journal:
            bound = journal.read().query_id
        if bound:
            raise LineageError(
                f"the journal belongs to query {bound}, and its checkpoint {self._job.config.checkpoint} is gone",
                why="a new checkpoint starts at epoch 0 again, and its epochs would be skipped or written twice",
                next="bring the checkpoint back; or `exactsink adopt JOB.toml`, which lets the epochs go on with a new "
                "one; or give the job a new name and checkpoint",
            )

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._run(frame, batch_id)
        except BaseException as error:  # Spark must see it, else it commits the batch
            self._job.failure = error
            raise

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        context = frame.sparkSession.sparkContext
        coordinator = self._for_run(
            frame,
            context.getLocalProperty("sql.streaming.queryId"),
            context.getLocalProperty("spark.jobGroup.id"),  # the run's id
        )
        if self._last_epoch is not None:
            coordinator.returned(self._last_epoch)
        passes = self._passes_for(frame)
        epoch = self._base + batch_id
        # Before the first batch has run, nothing reports yet whether the query keeps state.
        with passes.batch(frame, keeps_state=batch_id == 0 or self._checkpoint.is_stateful()) as write:
            reported = ExplainedWrite(write)
            fingerprint, ends = self._checkpoint.fingerprint(batch_id), self._checkpoint.source_ends(batch_id)
            coordinator.run_epoch(Batch(epoch, fingerprint, passes.schemas(), reported, ends))
        if not reported.ran and self._checkpoint.is_stateful():
            frame.write.format("noop").mode("overwrite").save()  # else the state store lacks this batch's version
        self._last_epoch = epoch
        self._job.epochs_done += 1

    def _passes_for(self, frame: DataFrame) -> Passes:
        """Analyze once for all batches of one schema."""
        if self._passes is None or not self._passes.fits(frame):
            self._passes = self._job.passes(frame, self._route)
        return self._passes

    def _for_run(self, frame: DataFrame, query_id: str | None, run_id: str | None) -> Coordinator:
        if query_id is None:
            raise ConfigError(
                "this batch does not say which query it belongs to",
                why="Spark Connect runs foreachBatch on the server, without the query's id",
                next="run the job in a classic session (spark-submit, or exactsink run)",
            )
        if query_id != self._checkpoint.query_id():
            raise LineageError(
                f"query {query_id} does not write its checkpoint to {self._job.config.checkpoint}",
                why="the journal stands beside the checkpoint, and the two must belong together",
                next=f"give the query .option('checkpointLocation', '{self._job.config.checkpoint}')",
            )
        if self._coordinator is None or self._run_id not in (None, run_id):
            if not self._preflighted:
                self._passes = self._job.preflight(frame, self._route)
            self._coordinator = self._started(query_id)
            self._last_epoch = None
        self._run_id = run_id
        return self._coordinator

    def _started(self, query_id: str) -> Coordinator:
        journal = self._job.journal()
        coordinator = self._job.coordinator(journal)
        coordinator.start(query_id, lambda epoch: self._checkpoint.is_epoch_done(epoch, journal.log.base))
        self._base = journal.log.base
        return coordinator


class ExplainedWrite:
    """A write that reports Spark's errors as Retryable, and knows whether it ran.

    Nothing of the epoch is decided yet then, or it is written again.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self.ran = False

    def __call__(self, plan: EpochPlan) -> Sequence[Vote]:
        self.ran = True
        try:
            return self._write(plan)
        except (Py4JJavaError, PySparkException) as error:
            what = f"the tasks of epoch {plan.epoch} failed"
            raise Retryable(what, why=task_error(error), next="start the job again") from error
