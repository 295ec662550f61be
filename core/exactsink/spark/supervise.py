"""Run a job's query to its end, and start it again after errors that a retry can help."""

from __future__ import annotations

import logging
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from exactsink.contract import Retryable
from exactsink.job.stop import Stop
from exactsink.spark.errors import query_error, refused_by_system
from exactsink.spark.job import Job
from exactsink.spark.jvm import LostSession, lost_jvm_named, lost_session
from exactsink.spark.query import Query
from exactsink.toolkit.waiting import backoff

__all__ = ["supervise"]

_LOOK_SECONDS = 0.5


def supervise(
    job: Job, frame: Callable[[], DataFrame], wait: Callable[[int], None] = backoff, stop: Stop | None = None
) -> None:
    """Run until the source is exhausted, or `stop` gets a request. `frame` makes the source's frame for every start.

    After a Retryable, or an error of Spark's own, it starts the query again, up to `restarts` times in a row without a
    finished epoch between. It raises every other error of exactsink, a bug, and the loss of the JVM or of its Spark
    context at once.
    """
    failures = 0
    stop = stop or Stop()
    while not stop.asked:
        query: Query | None = None
        try:
            with lost_jvm_named():
                source = frame()
            query = job.start(source)  # it names a lost JVM itself; twice would delay every other error twice
            with lost_jvm_named():
                _wait_for_end(job, query, stop)
            return
        except (PySparkException, Py4JJavaError) as error:  # before the query runs
            ours = query_error(None, error)
            if not isinstance(ours, Retryable):
                raise ours from error
            failure = ours
        except LostSession:
            raise
        except Retryable as error:
            failure = error
        except OSError as error:
            failure = refused_by_system(error)
        finally:
            job.end_query()
        job.check_fenced()  # a driver that was stalled may get any error, and must not claim again
        failures = 1 if query is not None and query.epochs else failures + 1
        if failures > job.config.job.restarts or stop.asked:
            raise failure
        if (lost := lost_session()) is not None:  # no query can start there any more
            raise lost from failure
        job.events.report("query_restarted", level=logging.WARNING, attempt=failures, error=str(failure))
        wait(failures - 1)


def _wait_for_end(job: Job, query: Query, stop: Stop) -> None:
    try:
        while not query.awaitTermination(_LOOK_SECONDS):
            query.report_behind()
            if (lost := lost_session()) is not None:  # an idle query does not see it
                raise lost
            if stop.asked and stop.at_once and query.is_in_epoch():
                stop.crash(f"{stop.asked} in an epoch")
            if stop.asked:
                job.events.report("query_ending", level=logging.WARNING)
                query.stop()
    except BaseException:
        query.interrupt()
        raise
