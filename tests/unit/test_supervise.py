"""Which ends of a query start it again, and which end the run; what an old run's thread may still do."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException
from tests.unit.manual_job import Job as ManualJob

from exactsink.contract import ConfigError, Fatal, Fenced, Retryable
from exactsink.job.config import load_config
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Log
from exactsink.spark.epochs import Epochs
from exactsink.spark.errors import query_error
from exactsink.spark.query import Query
from exactsink.spark.supervise import supervise


class JavaError(Py4JJavaError):
    """A Java exception that pyspark has no name for, without a JVM behind it."""

    def __init__(self, text: str = "java.io.IOException: the checkpoint's disk is away") -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class FakeJob:
    """A job whose queries end as scripted: with (what Spark raises, what its batch raised), or well."""

    def __init__(self, *ends: tuple[Exception, BaseException | None], restarts: int = 3) -> None:
        self.ends = list(ends)
        self.config = SimpleNamespace(job=SimpleNamespace(restarts=restarts))
        self.epochs: Any = None
        self.starts = self.closed = 0
        self.events = Events("job")
        self.fenced: Fenced | None = None

    def start(self, frame: Any) -> Any:
        self.starts += 1
        streaming: Any = SimpleNamespace(awaitTermination=self._end, stop=lambda: None)
        self.epochs = SimpleNamespace(failure=None, done=0)
        return Query(streaming, self.epochs, {}, self.events)

    def check_fenced(self) -> None:
        if self.fenced is not None:
            raise self.fenced

    def end_query(self) -> None:
        self.closed += 1

    def _end(self, seconds: float) -> bool:
        if self.ends:
            raised, self.epochs.failure = self.ends.pop(0)
            raise raised
        return True


def run(job: FakeJob) -> list[int]:
    waits: list[int] = []
    supervise(job, lambda: None, wait=waits.append)  # type: ignore[arg-type]
    return waits


QUERY = StreamingQueryException("the query failed")
AGAIN = {
    "a retryable batch": (QUERY, Retryable("away")),
    "a full disk in the batch": (QUERY, OSError(28, "No space left on device")),
    "a full disk at the start": (OSError(28, "No space left on device"), None),
    "a store that is away": (QUERY, ConnectionRefusedError(111, "Connection refused")),
    "an error of Spark's own": (QUERY, None),
    "a Java error without a name": (JavaError(), None),
}
ENDS = {
    "fatal": (QUERY, Fatal("fix it"), Fatal),
    "fenced": (QUERY, Fenced("another driver"), Fenced),
    "a bug": (QUERY, KeyError("bug"), KeyError),
    "a mistake in the query": (AnalysisException("no such column"), None, ConfigError),
    "a JVM that is gone": (Py4JNetworkError("refused"), None, Retryable),
}


@pytest.mark.parametrize("case", list(ENDS))
def test_what_a_retry_cannot_help_ends_the_run_at_once(case: str) -> None:
    raised, failure, kind = ENDS[case]
    job = FakeJob((raised, failure))
    with pytest.raises(kind):
        run(job)
    assert (job.starts, job.closed) == (1, 1)


def test_restarts_in_a_row_are_counted_and_end() -> None:
    job = FakeJob(*[AGAIN["a Java error without a name"]] * 9)
    with pytest.raises(Retryable, match=r"outside exactsink: java\.io\.IOException"):
        run(job)
    assert job.starts == 4


@pytest.mark.parametrize("case", list(AGAIN))
def test_what_a_retry_can_help_starts_the_query_again_unless_another_driver_has_fenced_this_one(case: str) -> None:
    """It was stalled, and woke among its successor's work: to claim would take the job away."""
    job, fenced = FakeJob(AGAIN[case]), FakeJob(AGAIN[case])
    assert run(job) == [0]
    assert (job.starts, job.closed) == (2, 2)
    fenced.fenced = Fenced("another driver has claimed")
    with pytest.raises(Fenced):
        run(fenced)
    assert (fenced.starts, fenced.closed) == (1, 1)


@pytest.mark.parametrize(
    ("error", "said"),
    {
        OSError(28, "No space left on device"): "the system refused a file: .*\n  next: free space on that disk, then",
        TimeoutError(110, "timed out", "/nfs/a"): "the system refused a file: .*/nfs/a'\n  next: fix that, then start",
        ConnectionRefusedError(111, "refused"): "a connection failed: ConnectionRefusedError: .* refused\n  next: c",
        JavaError("FSError: No space left on device"): "the system refused Spark a file: .*\n  next: free space on",
        OSError("HTTPSConnectionPool"): "a connection failed: OSError: HTTPSConnectionPool\n  next: check that the se",
    }.items(),
)
def test_a_broken_connection_is_no_file(error: Exception, said: str) -> None:
    assert re.match(said, str(query_error(error if isinstance(error, OSError) else None, error)))


class FakeDriver:
    """A driver whose coordinator does `epoch` in every batch; `made` lists them all."""

    made: list[Any]
    epoch: Callable[[], None]

    def __init__(self, *of_the_job: object) -> None:
        self.made.append(self)
        self.heartbeat = SimpleNamespace()
        self.journal = SimpleNamespace(log=Log())
        self.coordinator = SimpleNamespace(start=lambda *a: {}, run_epoch=lambda b: self.epoch(), returned=lambda e: 0)

    def close(self) -> None:
        pass


def test_an_old_runs_thread_changes_nothing_of_a_new_run(job: ManualJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query made by hand is stopped in a batch, and started again, before the batch's thread comes back."""

    def frame(run: str) -> Any:
        return SimpleNamespace(sparkSession=run)

    def first_ends_after_the_second_began() -> None:
        monkeypatch.setattr(FakeDriver, "epoch", lambda self: None)
        query(frame("second"), 0)
        raise Retryable("it was stopped")

    job.checkpoint("query-1")
    monkeypatch.setattr(FakeDriver, "made", [], raising=False)
    monkeypatch.setattr(FakeDriver, "epoch", lambda self: first_ends_after_the_second_began(), raising=False)
    monkeypatch.setattr("exactsink.spark.epochs.Driver", FakeDriver)
    monkeypatch.setattr("exactsink.spark.epochs.query_run_of", lambda run: ("query-1", run))
    passes: Any = SimpleNamespace(fits=lambda frame: True, schemas=dict, columns=dict, routed=False, persists=False)
    query = Epochs(load_config(job.file)[0], {}, Events("job"), None, passes)
    with pytest.raises(Retryable, match="it was stopped"):
        query(frame("first"), 0)
    assert (query.failure, query.done, len(FakeDriver.made)) == (None, 1, 2)
    with pytest.raises(Fenced, match="run first of the query has ended"):
        query(frame("first"), 1)
    assert (query.failure, len(FakeDriver.made)) == (None, 2)
    monkeypatch.setattr(FakeDriver, "epoch", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        query(frame("second"), 0)
    assert isinstance(query.failure, ZeroDivisionError)
    monkeypatch.setattr(FakeDriver, "epoch", lambda self: None)
    query(frame("third"), 0)
    assert query.failure is None


def test_the_lag_is_reported_of_each_progress_also_where_spark_has_it_after_the_epoch(job: ManualJob) -> None:
    heard: list[Any] = []

    none: Any = None
    query = Query(none, none, {}, Events("job", (heard.append,)))

    def progress(at: str, behind: str) -> Any:
        source = {"description": "Kafka", "metrics": {"maxOffsetsBehindLatest": behind}}
        return SimpleNamespace(lastProgress={"timestamp": at, "sources": [source]})

    for at, behind in (("1", "50"), ("1", "50"), ("2", "0"), ("3", "null")):
        query._streaming = progress(at, behind)
        query.report_behind()
    assert [event.fields["behind"] for event in heard] == [50, 0]


@pytest.mark.parametrize(("text", "ends"), {"a stopped SparkContext": True, "no such query": False}.items())
def test_a_query_whose_session_was_stopped_first_has_ended(text: str, ends: bool) -> None:
    def stop() -> None:
        raise JavaError(f"java.lang.IllegalStateException: Cannot call methods on {text}.")

    streaming: Any = SimpleNamespace(stop=stop)
    with nullcontext() if ends else pytest.raises(JavaError):
        Query(streaming, cast(Any, None), {}, Events("job")).interrupt()
