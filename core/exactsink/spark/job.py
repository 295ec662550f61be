"""A job on Spark: data enters here, batch by batch, and each batch is one epoch."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from exactsink.commit import Retry
from exactsink.config import JobConfig, bind_sinks, load_config
from exactsink.coordinator import Batch, Coordinator
from exactsink.errors import ConfigError, LineageError, Retryable
from exactsink.events import Events, Subscriber
from exactsink.journal.journal import Journal
from exactsink.journal.store import LocalStore
from exactsink.registry import Registry, installed_plugins
from exactsink.sinks import Sink
from exactsink.spark.causes import task_error
from exactsink.spark.checkpoint import Checkpoint
from exactsink.spark.one_pass import OnePass
from exactsink.spark.preflight import check_executors, check_sinks, refuse_errors
from exactsink.state import StateFile
from exactsink.votes import EpochPlan, Vote

__all__ = ["Job"]

_COMMIT_ATTEMPTS = 8
_LONGEST_PAUSE_SECONDS = 10.0


class Job:
    """Sinks that are committed together, fed by one streaming query.

    `Job.from_toml("job.toml").start(df)` starts the query; `df.writeStream.foreachBatch(job.foreach_batch())` is the
    same by hand, with the job's own checkpoint as `checkpointLocation`.
    """

    def __init__(self, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber] = ()) -> None:
        self.config = config
        self.sinks = sinks
        self.failure: BaseException | None = None
        """What ended the last query from within `foreachBatch`; Spark itself only keeps its text."""
        self.epochs_done = 0
        """How many epochs this process has finished, over all its queries."""
        self._events = Events(config.job.name, subscribers)
        self._driver: Coordinator | None = None

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], subscribers: Sequence[Subscriber] = ()) -> Job:
        """Read a job's file and bind its sinks. Starts nothing. Raises ConfigError with the file and line."""
        config, document = load_config(path)
        registry = Registry(installed_plugins())
        return cls(config, bind_sinks(config, document, registry), (registry.send, *subscribers))

    def start(self, frame: DataFrame) -> StreamingQuery:
        """Check every sink, claim the job, finish what an earlier driver left, and start the query.

        Raises PreflightError, LineageError, ConfigError, InDoubt or Retryable before Spark reads a row.
        """
        if is_remote():
            raise _needs_classic("start needs a classic session")
        if not frame.isStreaming:
            raise ConfigError("start takes a streaming frame", next="read it with spark.readStream")
        one_pass = self._preflight(frame)
        self._tell_promise()
        self.failure = None
        body = _ForeachBatch(self, one_pass)
        body.claim_early()
        writer = frame.writeStream.foreachBatch(body).queryName(self.config.job.name)
        writer = writer.option("checkpointLocation", str(self.config.checkpoint))
        writer = writer.outputMode(self.config.job.output_mode)
        trigger = self.config.job.trigger
        if trigger == "available_now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=trigger)
        return writer.start()

    def foreach_batch(self) -> Callable[[DataFrame, int], None]:
        """Give the function for a hand-made query; it claims the job in its first call of every query run."""
        return _ForeachBatch(self)

    def coordinator(self) -> Coordinator:
        """Make a driver that has not claimed yet."""
        self.config.home.mkdir(parents=True, exist_ok=True)
        state = StateFile(self.config.home / "state.json")
        self._driver = Coordinator(
            self.config.job.name,
            self.sinks,
            self.journal(),
            self._events,
            driver=f"{platform.node()}:{os.getpid()}",
            retry=Retry(_COMMIT_ATTEMPTS, pause),
            save_state=state.write,
        )
        return self._driver

    def close(self) -> None:
        """Let go of the sinks' connections, once the query has ended. Rolls nothing back."""
        if self._driver is not None:
            self._driver.close()

    def journal(self) -> Journal:
        """Open the job's journal, beside its checkpoint."""
        return Journal(LocalStore(self.config.home / "journal"), wait=pause)

    def _tell_promise(self) -> None:
        for name, sink in self.sinks.items():
            self._events.tell(
                "sink",
                sink=name,
                backend=sink.kind,
                strategy=sink.backend.strategy,
                guarantee=sink.backend.traits.guarantee,
                target=sink.backend.target,
            )

    def _preflight(self, frame: DataFrame) -> OnePass:
        """Refuse what can't be kept; give the frame's shapes, which the batches share."""
        one_pass = OnePass(frame, self.sinks)
        findings = check_sinks(self.config.job.name, self.sinks, one_pass.schemas())
        refuse_errors(findings)
        for sink, found in findings.items():
            for finding in found:
                self._events.tell("preflight_warning", sink=sink, message=finding.message, fix=finding.fix)
        check_executors(frame.sparkSession, self.sinks)
        return one_pass


class _ForeachBatch:
    """What Spark calls per batch. A new query run is a new claim: an old run's thread can outlive its query.

    `one_pass` is what preflight gave; without it every claim makes its own preflight.
    """

    def __init__(self, job: Job, one_pass: OnePass | None = None) -> None:
        self._job = job
        self._checkpoint = Checkpoint(job.config.checkpoint)
        self._preflighted = one_pass is not None
        self._run_id: str | None = None
        self._coordinator: Coordinator | None = None
        self._last_epoch: int | None = None
        self._one_pass = one_pass

    def claim_early(self) -> None:
        """Claim before the query starts if the checkpoint knows its query; a new one is claimed by its first batch."""
        query_id = self._checkpoint.query_id()
        if query_id is not None:
            self._coordinator = self._started(query_id)
        elif (bound := self._job.journal().read().query_id) is not None:
            raise LineageError(
                f"the journal belongs to query {bound}, and its checkpoint {self._job.config.checkpoint} is gone",
                why="a new checkpoint starts at epoch 0 again, and its epochs would be skipped or written twice",
                next="bring the checkpoint back, or give the job a new name and checkpoint",
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
        one_pass = self._one_pass_for(frame)
        ran = False

        def write(plan: EpochPlan) -> Sequence[Vote]:
            nonlocal ran
            ran = True
            try:
                return one_pass.write(frame, plan)
            except (Py4JJavaError, PySparkException) as error:
                what = f"the tasks of epoch {plan.epoch} failed"
                raise Retryable(what, why=task_error(error), next="start the job again") from error

        coordinator.run_epoch(Batch(batch_id, self._checkpoint.fingerprint(batch_id), one_pass.schemas(), write))
        if not ran and self._checkpoint.is_stateful():
            frame.write.format("noop").mode("overwrite").save()  # else the state store lacks this batch's version
        self._last_epoch = batch_id
        self._job.epochs_done += 1

    def _one_pass_for(self, frame: DataFrame) -> OnePass:
        """Analyze once for all batches of one schema."""
        if self._one_pass is None or not self._one_pass.fits(frame):
            self._one_pass = OnePass(frame, self._job.sinks)
        return self._one_pass

    def _for_run(self, frame: DataFrame, query_id: str | None, run_id: str | None) -> Coordinator:
        if query_id is None:
            raise _needs_classic("this batch does not say which query it belongs to")
        if query_id != self._checkpoint.query_id():
            raise LineageError(
                f"query {query_id} does not write its checkpoint to {self._job.config.checkpoint}",
                why="the journal stands beside the checkpoint, and the two must belong together",
                next=f"give the query .option('checkpointLocation', '{self._job.config.checkpoint}')",
            )
        if self._coordinator is None or self._run_id not in (None, run_id):
            if not self._preflighted:
                self._one_pass = self._job._preflight(frame)
            self._coordinator = self._started(query_id)
            self._last_epoch = None
        self._run_id = run_id
        return self._coordinator

    def _started(self, query_id: str) -> Coordinator:
        coordinator = self._job.coordinator()
        coordinator.start(query_id, self._checkpoint.is_done)
        return coordinator


def pause(attempt: int) -> None:
    """Wait before another try: 0.1 s, doubled each time, 10 s at most."""
    time.sleep(min(0.1 * 2**attempt, _LONGEST_PAUSE_SECONDS))


def _needs_classic(what: str) -> ConfigError:
    return ConfigError(
        what,
        why="Spark Connect runs foreachBatch on the server, without the query's id",
        next="run the job in a classic session (spark-submit, or exactsink run)",
    )
