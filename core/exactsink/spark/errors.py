"""Convert Spark's errors into exactsink's: the cause in one line, and the next step."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.utils import is_remote

from exactsink.contract import ConfigError, Retryable
from exactsink.spark.kafka_source import source_error

__all__ = [
    "REPEATING",
    "first_line",
    "needs_classic_session",
    "not_on_the_querys_thread",
    "query_error",
    "quiet_loggers",
    "refuse_connect",
    "refused_by_system",
    "task_error",
    "tasks_of",
]

_PLACE = re.compile(r"; line \d+ pos \d+;?$")
"""The position of a mistake in Spark's own text, which only Spark sees."""
_NAMED = re.compile(r"[^:]*(Error|Exception|Retryable):")
_SPARKS_OWN = ("org.apache.spark", "pyspark.")
_OF_NETWORK = (ConnectionError, TimeoutError, socket.gaierror, socket.herror, ssl.SSLError)
_NETWORKS_OWN = {None, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL}
"""Numbers of a failed connection; clients for HTTP raise OSErrors without one."""
_FIXES = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space, or raise the quota of the driver's user",
    errno.EROFS: "mount it writable again",
    errno.EACCES: "let the driver's user write there",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
}
REPEATING = ("py4j.clientserver", "DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of pyspark that repeat each raised error with plan and stack."""


@contextmanager
def quiet_loggers() -> Iterator[None]:
    """Keep pyspark from logging the errors that the body raises."""
    levels = {logger: logger.level for logger in map(logging.getLogger, REPEATING)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def first_line(error: Exception, *, place: bool = False) -> str:
    """Return Spark's message without the call, the plan and the stack. With `place`, keep the position in a query."""
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        lines = [lines[1].removeprefix(": ")]  # a Java error without a class in pyspark
    if not lines:
        return type(error).__name__
    return lines[0] if place else _PLACE.sub("", lines[0])


def task_error(error: Exception) -> str:
    """Return a Python task's own error from Spark's report, or else the last cause that Java names."""
    lines = [line.strip() for line in str(error).splitlines()]
    for causes in ("", "Caused by: "):  # a task's own error has its own traceback
        named = [line.removeprefix(causes) for line in lines if line.startswith(causes)]
        named = [line for line in named if _NAMED.match(line)]
        if own := [line for line in named if not line.startswith(_SPARKS_OWN)] or named:
            return own[-1][:500]
    return first_line(error)[:500]


@contextmanager
def tasks_of(epoch: int) -> Iterator[None]:
    """Raise Retryable if an epoch's tasks fail in the body, because Spark gives the batch again."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        if (asked := source_error(error)) is not None:
            raise asked from error
        why = task_error(error)
        raise Retryable(f"the tasks of epoch {epoch} failed", why=why, next="start the job again") from error


def query_error(failure: BaseException | None, error: Exception) -> BaseException:
    """Return the error that ended a query: its batch's `failure`, or else Spark's error as one of exactsink's."""
    if isinstance(failure, OSError):
        return refused_by_system(failure)
    if failure is not None:
        return failure
    if (asked := source_error(error)) is not None:
        return asked
    if isinstance(error, AnalysisException):
        return ConfigError("Spark refuses the query", why=first_line(error), next="fix the frame, or [job] output_mode")
    why = first_line(error)
    for number, fix in _FIXES.items():
        if os.strerror(number) in why:
            fix += "; Spark writes below the checkpoint and spark.local.dir; then start the job again"
            return Retryable("the system refused Spark a file", why=why, next=fix)
    fix = "start the job again; or, if the job has another source than the checkpoint: `exactsink adopt JOB.toml`"
    return Retryable("the query failed outside exactsink", why=why, next=fix)


def refused_by_system(error: OSError) -> Retryable:
    """Return a Retryable for a full disk, a lost mount or a broken connection. Nothing is lost."""
    if error.filename is None and (isinstance(error, _OF_NETWORK) or error.errno in _NETWORKS_OWN):
        fix = "check that the server and the network are up, then start the job again"
        return Retryable("a connection failed", why=f"{type(error).__name__}: {error}", next=fix)
    fix = _FIXES.get(error.errno or 0, "fix that")
    return Retryable("the system refused a file", why=str(error), next=f"{fix}, then start the job again")


def refuse_connect(what: str) -> None:
    """Raise ConfigError in a session of Spark Connect."""
    if is_remote():
        raise needs_classic_session(f"{what} needs a classic session")


def needs_classic_session(what: str) -> ConfigError:
    """Return the error for a stream that Spark Connect can't serve."""
    return ConfigError(
        what,
        why="Spark Connect calls foreachBatch in a process of its server, which knows neither the query nor its run: "
        "exactsink could not distinguish an older run from a newer one",
        next="run the stream in a classic session (spark-submit, or `exactsink run JOB.toml`); Job.write works over "
        "Spark Connect",
    )


def not_on_the_querys_thread() -> ConfigError:
    """Return the error for a batch with an unknown query and run."""
    return ConfigError(
        "exactsink's function was called on another thread than the query's own",
        why="only the thread on which Spark calls the function of foreachBatch shows the run of the query that a batch "
        "belongs to; your own thread does not, nor does any thread with PYSPARK_PIN_THREAD=false",
        next="call it once, in the function itself, with a frame of all rows; each sink gets its part by `where`, "
        "`columns` or a route, and exactsink writes all sinks at the same time",
    )
