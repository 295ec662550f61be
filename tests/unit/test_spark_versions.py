"""A Spark out of range is refused by its name, before anything else of exactsink could trip over it."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pyspark
import pytest

from exactsink.contract import ConfigError
from exactsink.spark import epochs, versions
from exactsink.spark.versions import NEWEST, OLDEST, OLDEST_OF_PYTHON_3_12, check_jvm, check_version, source_metrics
from exactsink.toolkit.spark_sql import quoted_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
OLD, NEW = (3, 11, 7), (3, 13, 0)


@pytest.mark.parametrize(
    ("spark", "python"), [("3.5.0", OLD), ("3.5.9+vendor", OLD), ("4.0.0", NEW), ("4.3.1", OLD), ("4.3.0.dev1", NEW)]
)
def test_a_spark_in_range_is_taken(monkeypatch: pytest.MonkeyPatch, spark: str, python: tuple[int, ...]) -> None:
    found(monkeypatch, spark, python)
    check_version()


@pytest.mark.parametrize(
    ("spark", "python", "wanted"),
    [
        ("3.4.4", OLD, ">=3.5,<4.4"),
        ("2.4", OLD, ">=3.5,<4.4"),
        ("3.5.9", NEW, ">=4.0,<4.4"),
        ("4.4.0", OLD, ">=3.5,<4.4"),
        ("4.10.0", NEW, ">=4.0,<4.4"),
        ("unknown", OLD, ">=3.5,<4.4"),
    ],
)
def test_another_is_refused(monkeypatch: pytest.MonkeyPatch, spark: str, python: tuple[int, ...], wanted: str) -> None:
    found(monkeypatch, spark, python)
    with pytest.raises(ConfigError, match=f"Spark {spark} is not supported on Python 3.{python[1]}") as refused:
        check_version()
    assert f"pip install 'pyspark{wanted}'" in str(refused.value)


@pytest.mark.parametrize(
    ("spark", "java", "refused"),
    [
        ("3.5.9", "17", False),
        ("3.5.9", "25", True),
        ("4.1.1", "23", False),
        ("4.1.1", "24", True),
        ("4.2.0", "25", False),
    ],
)
def test_a_java_that_is_too_new_for_a_spark_is_refused(
    monkeypatch: pytest.MonkeyPatch, spark: str, java: str, refused: bool
) -> None:
    monkeypatch.setattr(pyspark, "__version__", spark)
    with pytest.raises(ConfigError, match=f"Spark {spark} does not run on Java {java}") if refused else nullcontext():
        check_jvm(gateway_to(spark, java))


def test_a_jvm_of_another_spark_is_refused_by_the_name_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    check_jvm(gateway_to("4.3.1-vendor", "17"))
    with pytest.raises(ConfigError) as refused:
        check_jvm(gateway_to("3.5.9", "17"))
    said = "the JVM has Spark 3.5.9, and this Python has pyspark 4.3.0: SPARK_HOME is /opt/spark"
    assert str(refused.value) == f"{said}\n  next: unset SPARK_HOME; or pip install 'pyspark==3.5.*'"


def gateway_to(spark: str, java: str) -> Mock:
    asked = {"jvm.System.getProperty.side_effect": {"java.specification.version": java}.__getitem__}
    return Mock(**asked, **{"jvm.org.apache.spark.package.SPARK_VERSION.return_value": spark})


def found(monkeypatch: pytest.MonkeyPatch, spark: str, python: tuple[int, ...]) -> None:
    monkeypatch.setattr(pyspark, "__version__", spark)
    made = type("version_info", (tuple,), {"major": python[0], "minor": python[1]})
    monkeypatch.setattr(versions, "sys", type("sys", (), {"version_info": made(python)}))


def test_a_command_says_so_before_it_reads_the_job_and_exits_2() -> None:
    code = "import sys, pyspark; pyspark.__version__ = '3.3.4'; from exactsink.cli.main import main as m; "
    code += "sys.exit(m(sys.argv[1:]))"
    ended = subprocess.run([sys.executable, "-c", code, "run", "nowhere.toml"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("exactsink: Spark 3.3.4 is not supported")
    assert "Traceback" not in ended.stderr


def test_pip_is_asked_for_the_same_range() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ranges = [(OLDEST, "<"), (OLDEST_OF_PYTHON_3_12, ">=")]
    wanted = [
        f"pyspark>={major}.{minor},<{NEWEST[0]}.{NEWEST[1] + 1}; python_version {of} '3.12'"
        for (major, minor), of in ranges
    ]
    assert [line for line in extras["spark"] if line.startswith("pyspark")] == wanted


def test_a_source_that_reports_nothing_of_itself_has_no_metrics() -> None:
    """Spark 3.5 leaves the key out, later ones have an empty map, and Kafka's a full one."""
    assert [source_metrics(of) for of in ({}, {"metrics": None}, {"metrics": {"a": "1"}})] == [{}, {}, {"a": "1"}]


def test_a_text_in_sql_has_no_quote_or_backslash_that_versions_read_differently() -> None:
    made = [quoted_text(text) for text in ("", "a b", "'", "\\", "d'T'H", "a\\")]
    assert made == [
        "''",
        "'a b'",
        "char(39)",
        "char(92)",
        "concat('d', char(39), 'T', char(39), 'H')",
        "concat('a', char(92))",
    ]


@pytest.mark.parametrize("between", [r".+(\r\n|\r|\n): ", r"((.|\r\n|\r|\n)*)"], ids=["3.5", "4.0 or newer"])
def test_each_spark_finds_a_stop_in_the_text_of_an_interrupted_batch(between: str) -> None:
    """Spark looks for it in the traceback that py4j hands on (`StreamExecution.PROXY_ERROR`)."""
    text = "".join(traceback.format_exception_only(RuntimeError(epochs._INTERRUPTED)))
    calling = r"py4j\.protocol\.Py4JJavaError: An error occurred while calling"
    assert re.search(rf"{calling}{between}java\.lang\.InterruptedException", text)
