"""Run a job's query to its end, and start it again after errors that a retry can help."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from exactsink.errors import ConfigError, Retryable
from exactsink.spark.job import Job, pause

__all__ = ["supervise"]

_LOG = logging.getLogger("exactsink")


def supervise(job: Job, frame: Callable[[], DataFrame], wait: Callable[[int], None] = pause) -> None:
    """Run until the source is exhausted or the query is stopped; `frame` makes the source's frame for every start.

    A Retryable, and any error of Spark's own, starts the query again, `restarts` times in a row without a finished
    epoch between; every other error of exactsink ends the run at once, as does a bug.
    """
    failures = 0
    while True:
        done_before = job.epochs_done
        try:
            query = job.start(frame())
            try:
                query.awaitTermination()
            except BaseException:
                query.stop()
                raise
            return
        except PySparkException as error:
            failure = _cause(job, error)
        except Retryable as error:
            failure = error
        failures = 1 if job.epochs_done > done_before else failures + 1
        if failures > job.config.job.restarts:
            raise failure
        _LOG.warning("the query stopped, start %d of %d: %s", failures, job.config.job.restarts, failure)
        wait(failures - 1)


def _cause(job: Job, error: PySparkException) -> Retryable:
    """Find what ended a query: an error from within its batch as itself, Spark's own as Retryable."""
    if isinstance(job.failure, Retryable):
        return job.failure
    if job.failure is not None:
        raise job.failure
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, AnalysisException):
        raise ConfigError(
            "Spark refuses the query", why=lines[0], next="mend the job's file or its transform"
        ) from error
    return Retryable("the query failed outside of exactsink", why=lines[0])
