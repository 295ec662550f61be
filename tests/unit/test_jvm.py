"""A JVM that does not start, or dies: what it said, and what to do, and never a stack of ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkValueError

from exactsink.contract import ConfigError, ExactsinkError, Retryable
from exactsink.spark.jvm import LostSession, jvm_needed, lost_jvm_named, started_jvm


def no_java(folder: Path) -> str:
    return str(folder)


def script(text: str) -> Callable[[Path], str]:
    """Return what makes a JAVA_HOME with this in place of a java."""

    def make(folder: Path) -> str:
        (folder / "bin").mkdir()
        (folder / "bin/java").write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin/java").chmod(0o755)
        return str(folder)

    return make


OLD = """echo 'Error: LinkageError occurred while loading main class org.apache.spark.launcher.Main
\tjava.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been compiled by a more recent version
\tat java.base/java.lang.ClassLoader.defineClass1(Native Method)' >&2; exit 1"""

GONE = r"""case "$*" in *launcher.Main*) printf '\n%s\0' "$0"; exit 0;; esac
printf '\000\000\000\001\000\000\000\001x' > "$_PYSPARK_DRIVER_CONN_INFO_PATH" """

CASES = {
    "no java there": (no_java, {}, ConfigError, "bin/java: No such file or directory", "Java 17 or newer"),
    "no Spark there": (None, {}, ConfigError, "bin/spark-submit'", "unset SPARK_HOME"),
    "an old one": (script(OLD), {}, ConfigError, "UnsupportedClassVersionError: org/apache/spark", "Java 17 or newer"),
    "killed": (script("kill -9 $$"), {}, Retryable, "without output", "spark.driver.memory"),
    "gone once it has reported its port": (script(GONE), {}, Retryable, "without output", "spark.driver.memory"),
    "too large": (None, {"spark.driver.memory": "9000t"}, ConfigError, "Could not reserve", "spark.driver.memory"),
    "another host": (
        script("echo 'Caused by: java.net.UnknownHostException: here: here: unknown' >&2; exit 1"),
        *({}, ConfigError, "UnknownHostException: here", "SPARK_LOCAL_HOSTNAME=localhost"),
    ),
    "few open files": (  # ulimit -n 256
        script("echo 'java.lang.InternalError: Error loading java.security file' >&2; exit 1"),
        *({}, ConfigError, "loading java.security file", "ulimit -n 4096"),
    ),
    "a user without a name": (  # docker run --user
        script("echo 'java.lang.IllegalArgumentException: basedir must be absolute: ?/.ivy2.5.2/local' >&2; exit 1"),
        *({}, ConfigError, "basedir must be absolute", "a user whom /etc/passwd names"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_jvm_that_does_not_start_is_said_in_its_own_words(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home, conf, kind, why, fix = CASES[case]
    if case == "no Spark there":
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for name in ("_gateway", "_jvm"):  # another test may have a session in this process
        monkeypatch.setattr(SparkContext, name, None)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", home(tmp_path))
    for name in [name for name in os.environ if name.startswith("PYSPARK_GATEWAY")]:
        monkeypatch.delenv(name)
    with pytest.raises(ExactsinkError) as raised, started_jvm(SparkConf(loadDefaults=False).setAll(conf.items())):
        pytest.fail("it started")
    error = raised.value
    assert type(error) is kind
    assert why in error.why
    assert fix in error.next
    assert "\tat " not in error.why
    assert "array subscript" not in error.why
    assert capfd.readouterr() == ("", ""), "its words stand in the error, once"


def test_calls_into_a_jvm_that_is_gone_can_be_tried_again() -> None:
    with pytest.raises(Retryable, match="connection to Spark's JVM is lost: the answer is empty"), jvm_needed():
        raise Py4JNetworkError("the answer is empty")


@pytest.mark.parametrize("kind", [Py4JError, PySparkValueError, AssertionError])
def test_whatever_pyspark_makes_of_a_lost_jvm_is_named(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exactsink.spark.jvm.jvm_is_gone", lambda: True)
    with pytest.raises(LostSession, match="connection to Spark's JVM is lost"), lost_jvm_named():
        raise kind("CANNOT_PARSE_DATATYPE")
