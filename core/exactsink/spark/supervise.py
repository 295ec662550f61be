"""Run a job's query to its end, and start it again after errors that a retry can help."""

from __future__ import annotations

import logging
from collections.abc import Callable

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from exactsink.contract import ConfigError, Fatal, Retryable
from exactsink.job.stop import Stop
from exactsink.spark.errors import first_line
from exactsink.spark.job import Job
from exactsink.spark.jvm import jvm_is_gone, lost_jvm
from exactsink.spark.kafka_source import source_error
from exactsink.spark.query import Query
from exactsink.toolkit.waiting import backoff

__all__ = ["supervise"]

_LOOK_SECONDS = 0.5


def supervise(
    job: Job, frame: Callable[[], DataFrame], wait: Callable[[int], None] = backoff, stop: Stop | None = None
) -> None:
    """Run until the source is exhausted or `stop` is asked for; `frame` makes the source's frame for every start.

    A Retryable, and any error of Spark's own, starts the query again, `restarts` times in a row without a finished
    epoch between; every other error of exactsink ends the run at once, as does a bug.
    """
    failures = 0
    stop = stop or Stop()
    while not stop.asked:
        query: Query | None = None
        try:
            query = job.start(frame())
            _wait_for_end(query, stop)
            return
        except (PySparkException, Py4JJavaError) as error:  # the latter: a Java error that pyspark has no name for
            failure = _cause(query.failure if query is not None else None, error)
        except Retryable as error:
            failure = error
        except Py4JError as error:
            raise lost_jvm(error) from error
        except OSError as error:
            if jvm_is_gone():
                raise lost_jvm(error) from error
            failure = _refused_by_system(error)
        finally:
            job.end_query()
        job.check_fenced()  # a driver that was stalled may meet any error, and must not take the job back
        failures = 1 if query is not None and query.epochs_done else failures + 1
        if failures > job.config.job.restarts or stop.asked:
            raise failure
        job.events.report("query_restarted", level=logging.WARNING, attempt=failures, error=str(failure))
        wait(failures - 1)


def _wait_for_end(query: Query, stop: Stop) -> None:
    try:
        while not query.awaitTermination(_LOOK_SECONDS):
            query.report_behind()
            if stop.asked and stop.at_once and query.is_in_epoch():
                stop.crash(f"{stop.asked} in an epoch")
            if stop.asked:
                query.end()
    except BaseException:
        query.stop()
        raise


def _refused_by_system(error: OSError) -> Retryable:
    """A full disk or a lost mount is no bug: nothing is lost, and the next try may find it fixed."""
    return Retryable("the system refused a file", why=str(error), next="fix that, then start the job again")


def _cause(failure: BaseException | None, error: Exception) -> Retryable:
    """Return what ended a query: the failure from within its batch, else Spark's error, if a retry can help."""
    if isinstance(failure, Retryable):
        return failure
    if isinstance(failure, OSError):
        return _refused_by_system(failure)
    if failure is not None:
        raise failure
    asked = source_error(error)
    if isinstance(asked, Fatal):
        raise asked from error
    if isinstance(error, AnalysisException):
        raise ConfigError(
            "Spark refuses the query", why=first_line(error), next="fix the job's file or its transform"
        ) from error
    return asked or Retryable("the query failed outside of exactsink", why=first_line(error))
