"""The JVM of a command: started with its noise kept from the terminal, and gone when the command ends."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.sql import SparkSession

from exactsink.observe.logs import logs_json
from exactsink.spark.versions import has_jvm, launch_jvm, launched_jvm

__all__ = ["end_session", "kill_jvm", "reported", "start_jvm"]

_LOG = logging.getLogger("exactsink.spark")
_END_SECONDS = 10.0
_KILL_SECONDS = 3.0
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_HEADER = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) (?P<text>.*)")
_REST = re.compile(r"\s|$|Caused by: |Traceback |([A-Za-z_$][\w$]*\.)+[\w$]+(: |$)|\w+(Error|Exception)(: |$)")
"""A line that belongs to the record before it: of a stack, or of an error's name."""
_NOISE = re.compile(
    r"WARNING: (Using incubator modules: |A (restricted|terminally deprecated) method in |Use --enable-native-access"
    r"|Restricted methods will be blocked|[\w.$]+::\S+ (has been called|will be removed)|Please consider reporting"
    r"|sun\.misc\.Unsafe)|Picked up \w*JAVA\w*: |Using Spark's default log4j profile: "
    r"|Setting default log level to |To adjust logging level use "
)


def start_jvm(conf: SparkConf) -> None:
    """Start the JVM for a session of this conf, if the process has none, and pass on what it prints.

    Its errors are shown; its warnings with `-v`, the rest with `-vv`. A JVM that spark-submit started is left alone.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ or has_jvm():
        return
    reading, writing = os.pipe()
    printed = threading.Thread(target=_pass_on, args=(os.fdopen(reading, errors="replace"),), daemon=True)
    printed.start()
    try:
        launch_jvm(conf, writing).printed = printed
    finally:
        os.close(writing)


def end_session(spark: SparkSession) -> None:
    """Stop the session, and wait until the JVM that this process started is gone."""
    with suppress(Py4JError, OSError):  # it is gone already
        spark.stop()
    process = launched_jvm()
    if process is not None:
        with suppress(OSError):
            process.stdin.close()  # by which it ends
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            kill_jvm()
        process.printed.join(_END_SECONDS)


def kill_jvm() -> None:
    """End the JVM that this process started, now: by itself within seconds, else with SIGKILL."""
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
    """Yield what is to be shown of what a JVM prints, with the level of each line: all but its noise below `level`."""
    at = logging.ERROR
    for line in lines:
        found = _HEADER.match(line)
        if found is not None:
            at = _LEVELS[found[1]]
        elif _NOISE.match(line):
            at = logging.INFO
        elif not _REST.match(line):
            at = logging.ERROR  # no record of Spark's: a worker's own words, or the JVM's last ones
        if at >= level:
            yield at, line


def _pass_on(printed: IO[str]) -> None:
    level = {logging.INFO: logging.WARNING, logging.DEBUG: logging.DEBUG}.get(_verbosity(), logging.ERROR)
    with printed:
        for at, line in reported((line.rstrip("\n") for line in printed), level):
            if logs_json():
                _LOG.log(at, "%s", line)
            else:
                sys.stderr.write(line + "\n")


def _verbosity() -> int:
    return logging.getLogger("exactsink").getEffectiveLevel()
