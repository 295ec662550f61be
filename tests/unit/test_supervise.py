"""Which ends of a query start it again, and which end the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException

from exactsink.contract import ConfigError, Fatal, Fenced, Retryable
from exactsink.protocol.events import Events
from exactsink.spark.supervise import supervise


class JavaError(Py4JJavaError):
    """A Java exception that pyspark has no name for, without a JVM behind it."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return "java.io.IOException: the checkpoint's disk is away"


class FakeJob:
    """A job whose queries end as scripted: with (what Spark raises, what its batch raised), or well."""

    def __init__(self, *ends: tuple[Exception, BaseException | None], restarts: int = 3) -> None:
        self.ends = list(ends)
        self.config = SimpleNamespace(job=SimpleNamespace(restarts=restarts))
        self.query: Any = None
        self.starts = self.closed = 0
        self.events = Events("job")
        self.fenced: Fenced | None = None

    def start(self, frame: Any) -> Any:
        self.starts += 1
        self.query = SimpleNamespace(awaitTermination=self._end, stop=lambda: None, failure=None, epochs_done=0)
        return self.query

    def check_fenced(self) -> None:
        if self.fenced is not None:
            raise self.fenced

    def end_query(self) -> None:
        self.closed += 1

    def _end(self) -> None:
        if self.ends:
            raised, self.query.failure = self.ends.pop(0)
            raise raised


def run(job: FakeJob) -> list[int]:
    waits: list[int] = []
    supervise(job, lambda: None, wait=waits.append)  # type: ignore[arg-type]
    return waits


QUERY = StreamingQueryException("the query failed")
AGAIN = {
    "a retryable batch": (QUERY, Retryable("away")),
    "a full disk in the batch": (QUERY, OSError(28, "No space left on device")),
    "a full disk at the start": (OSError(28, "No space left on device"), None),
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
    with pytest.raises(Retryable, match=r"outside of exactsink: java\.io\.IOException"):
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
