"""Start the JVM of a command, keep its noise from the terminal, and end it with the command."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf
from pyspark.errors import PySparkException, PySparkValueError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from exactsink.contract import ConfigError, ExactsinkError, Retryable
from exactsink.observe.logs import logs_json
from exactsink.spark.errors import first_line
from exactsink.spark.versions import (
    check_jvm,
    context_has_stopped,
    has_jvm,
    jvm_address,
    launch_jvm,
    launched_jvm,
    use_jvm,
)

__all__ = [
    "LostSession",
    "end_session",
    "jvm_is_gone",
    "jvm_needed",
    "kill_jvm",
    "lost_jvm_named",
    "lost_session",
    "reported",
    "started_jvm",
]

_LOG = logging.getLogger("exactsink.spark")
_END_SECONDS = 10.0
_KILL_SECONDS = 3.0
_GONE_SECONDS = 2.0
"""How long a JVM may take to end after its connections are gone."""
_LOOK_SECONDS = 0.05
_LAST_LINES = 4
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Log4j's levels as those of `logging`."""
_HEADER = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) (?P<text>.*)")
_REST = re.compile(r"\s|$|Caused by: |Traceback |([A-Za-z_$][\w$]*\.)+[\w$]+(: |$)|\w+(Error|Exception)(: |$)")
"""A line that belongs to the record before it: a stack's line, or an error's name."""
_NOISE = re.compile(
    r"WARNING: (Using incubator modules: |A (restricted|terminally deprecated) method in |Use --enable-native-access"
    r"|Restricted methods will be blocked|[\w.$]+::\S+ (has been called|will be removed)|Please consider reporting"
    r"|sun\.misc\.Unsafe)|Picked up \w*JAVA\w*: |Using Spark's default log4j profile: "
    r"|Setting \w+ log level to |To adjust logging level use "
)
_ASIDE = re.compile(r"\s+at |\s*\.\.\. \d+ more|.*bad array subscript$|\s*$")
"""A line that adds nothing to the line before it: a stack's line, or the message of a script that continues."""
_FIXES = {
    "Master URL": "fix [spark] master: local[2], spark://HOST:7077, yarn or k8s://https://HOST:PORT, for example",
    "UnknownHost": "export SPARK_LOCAL_HOSTNAME=localhost, or give this machine's name an address in /etc/hosts",
    "UnsupportedClassVersion|JAVA_HOME|bin/java": "install Java 17 or newer, and name it in JAVA_HOME",
    "bin/spark-submit": "unset SPARK_HOME, or name a Spark in it that is there",
    r"absolute: \?|Invalid UID|null input: name": "run as a user whom /etc/passwd names: the JVM needs its home folder",
    "Too many open files|java.security file": "allow more open files: ulimit -n 4096; if they are, install Java again",
    "(?i)heap|memory": "fix spark.driver.memory in [spark.conf]",
}


class LostSession(Retryable):
    """The JVM is gone, or its Spark context stopped: a new process may go on, this one can start nothing any more."""


class _Printed(threading.Thread):
    """Read a JVM's output, and pass it on once the JVM is up. If it never is, its last lines explain the error."""

    def __init__(self, lines: IO[str]) -> None:
        super().__init__(daemon=True)
        self._lines = lines
        self._kept: list[tuple[int, str]] | None = []
        self._keeping = threading.Lock()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._level = {logging.INFO: logging.WARNING, logging.DEBUG: logging.DEBUG}.get(_verbosity(), logging.ERROR)

    def run(self) -> None:
        with self._lines:
            for at, line in reported((line.rstrip("\n") for line in self._lines), self._level):
                if at >= logging.ERROR and not _ASIDE.match(line):
                    self._last.append(line.strip())
                with self._keeping:
                    if self._kept is None or self._level < logging.ERROR:
                        _show(at, line)
                    else:
                        self._kept.append((at, line))

    def pass_on(self) -> None:
        """Show the output so far, and all later output, because the JVM is up."""
        with self._keeping:
            for at, line in self._kept or ():
                _show(at, line)
            self._kept = None

    def last_words(self) -> str:
        """Return the last errors that a JVM printed before it ended."""
        self.join(_GONE_SECONDS)  # its children may also have the pipe
        return "; ".join(self._last)


@contextmanager
def started_jvm(conf: SparkConf) -> Iterator[None]:
    """Start the JVM for a session of this conf, if the process has none. The body makes the session.

    Afterwards the JVM's errors are shown, its warnings with `-v`, and the rest with `-vv`. A JVM that spark-submit
    started is left alone. Raises ConfigError with the JVM's last lines if it does not start, Retryable if it was
    killed, and the errors of `jvm_needed`.
    """
    gateway, submitted = None, "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and not has_jvm():
        gateway = _launched(conf)
    with jvm_needed():
        if gateway is not None or (submitted and not is_remote()):
            check_jvm(use_jvm(gateway))  # used first, because `jvm_is_gone` looks there
        yield
    if gateway is not None:
        gateway.proc.printed.pass_on()


def _launched(conf: SparkConf) -> Any:
    reading, writing = os.pipe()
    printed = _Printed(os.fdopen(reading, errors="replace"))
    printed.start()
    try:
        gateway = launch_jvm(conf, writing)
    except (PySparkException, Py4JError, OSError) as error:
        os.close(writing)
        raise _not_started(error, printed.last_words()) from error
    os.close(writing)
    gateway.proc.printed = printed
    return gateway


@contextmanager
def jvm_needed() -> Iterator[None]:
    """Convert errors of the body's calls into the JVM: to ConfigError if Spark refuses a setting, to Retryable if the
    JVM is gone.
    """
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        why = first_line(error)
        if isinstance(error, Py4JNetworkError) or jvm_is_gone():
            raise _lost_jvm(error) from error
        if isinstance(error, ConnectionError):
            raise
        raise ConfigError("Spark refuses a setting of the job", why=why, next=_fix(why)) from error


def _lost_jvm(error: Exception) -> LostSession:
    process = launched_jvm()
    words = process.printed.last_words() if process is not None and jvm_is_gone() else ""
    if process is not None and process.poll() == -signal.SIGKILL:
        words = "; ".join(filter(None, [words, "SIGKILL ended it; the kernel does that when memory is short"]))
    why = words or first_line(error)
    if process is None and not words:
        why += "; spark-submit started that JVM, and its own output says how it ended"
    return LostSession("the connection to Spark's JVM is lost", why=why, next="run the job again")


@contextmanager
def lost_jvm_named() -> Iterator[None]:
    """Raise LostSession if a call of the body fails because the JVM is gone."""
    try:
        yield
    except Py4JJavaError:  # the JVM's own answer
        raise
    except (Py4JError, OSError, PySparkValueError, AssertionError) as error:  # `schema` raises the last two (3.5.0)
        if isinstance(error, Py4JNetworkError) or jvm_is_gone():
            raise _lost_jvm(error) from error
        raise


def lost_session() -> LostSession | None:
    """Return why this process can't start a query any more, None while it can."""
    try:
        if not context_has_stopped():
            return None
    except (Py4JError, OSError) as error:
        return _lost_jvm(error)
    why = "the cluster has ended the application, or a program has called stop()"
    return LostSession("Spark's context was stopped", why=why, next="run the job again")


def jvm_is_gone() -> bool:
    """Return whether this process's JVM has ended, or is about to. spark-submit may have started it."""
    until = time.monotonic() + _GONE_SECONDS
    while _jvm_lives():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return has_jvm()


def _jvm_lives() -> bool:
    process, address = launched_jvm(), jvm_address()
    if process is not None or address is None:
        return process is not None and process.poll() is None
    with suppress(OSError), socket.create_connection(address, _GONE_SECONDS):
        return True
    return False


def _not_started(error: Exception, words: str) -> ExactsinkError:
    what = "Spark's JVM did not start"
    refused = isinstance(error, OSError) and not isinstance(error, ConnectionError)  # else the JVM began, and has ended
    if not refused and (not words or "Killed" in words):
        why = words or "it ended without output, which happens when the kernel kills a process for lack of memory"
        return Retryable(what, why=why, next="free memory, or lower spark.driver.memory; then start the job again")
    return ConfigError(what, why=words or str(error), next=_fix(words or str(error)))


def _fix(words: str) -> str:
    found = (fix for pattern, fix in _FIXES.items() if re.search(pattern, words))
    return next(found, "fix the setting that it names, perhaps in [spark]; then start the job again")


def end_session(spark: SparkSession) -> None:
    """Stop the session, and wait until the JVM that this process started has ended. Idempotent."""
    with suppress(Py4JError, OSError):  # it is gone already
        spark.stop()
    process = launched_jvm()
    if process is not None:
        with suppress(OSError):
            process.stdin.close()  # which ends it
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            kill_jvm()
        process.printed.join(_END_SECONDS)


def kill_jvm() -> None:
    """End the JVM that this process started, now: with SIGTERM, and after some seconds with SIGKILL. Idempotent."""
    process = launched_jvm()
    if process is None:
        return
    process.terminate()
    try:
        process.wait(_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def reported(lines: Iterable[str], level: int) -> Iterator[tuple[int, str]]:
    """Yield the lines of a JVM's output that have at least this `level`, each with its own level. Noise is INFO."""
    at = logging.ERROR
    for line in lines:
        found = _HEADER.match(line)
        if found is not None:
            at = _LEVELS[found[1]]
        elif _NOISE.match(line):
            at = logging.INFO
        elif not _REST.match(line):
            at = logging.ERROR  # not a record of Spark's: a worker's output, or the JVM's last lines
        if at >= level:
            yield at, line


def _show(at: int, line: str) -> None:
    if logs_json():
        _LOG.log(at, "%s", line)
    else:
        sys.stderr.write(line + "\n")


def _verbosity() -> int:
    return logging.getLogger("exactsink").getEffectiveLevel()
