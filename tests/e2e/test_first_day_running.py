"""Mistakes with a job that has run: each is refused, or stops the job, and costs no row; the message leads on."""

from __future__ import annotations

import json
import platform
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.drivers import Drivers
from tests.e2e.first_day import Day
from tests.e2e.jobs import LINES, ROWS_A_BATCH, SINKS, SPARK, ids, in_lake, in_table, write_job, write_source
from tests.e2e.kafka_job import KafkaSink
from tests.e2e.postgres_job import Database
from tests.e2e.warm_jvm import WarmJvm

pytestmark = pytest.mark.proof

_DB = """
[sinks.db]
backend = "postgres"
conninfo = "{conninfo}"
table = "rows"
columns = ["id"]
create = true
"""
_PYENV = Path.home() / ".pyenv/versions"


def test_a_source_that_is_gone_is_named_and_one_without_files_is_no_mistake(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, capfd: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path, 1)
    day = Day(tmp_path, drivers, jvm, capfd)
    write_job(tmp_path)
    day.whole()
    shutil.rmtree(tmp_path / "source")
    day.refused(
        2, f"[PATH_NOT_FOUND] Path does not exist: {tmp_path}/source", "\n  next: fix [source] or the transform"
    )
    (tmp_path / "source").mkdir()
    day.whole()
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(1)


def test_another_python_on_the_executors_is_named_before_the_first_row(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, capfd: pytest.CaptureFixture[str]
) -> None:
    others = {path.name: path for path in (*_PYENV.glob("3.1?.*/bin/python3.1?"), *Path("/usr/bin").glob("python3.1?"))}
    others.pop(f"python3.{sys.version_info.minor}", None)
    if not others:
        pytest.skip("this machine has one Python only")
    write_source(tmp_path, 1)
    day = Day(tmp_path, drivers, jvm, capfd)
    write_job(tmp_path, spark=SPARK.replace("tests.e2e.python_daemon", "pyspark.daemon"))
    day.environment["PYSPARK_PYTHON"] = other = str(min(others.values()))
    named = f"the executors run another Python: PYSPARK_PYTHON is {other}: the driver has {platform.python_version()}"
    day.refused(5, named, f"\n  next: unset PYSPARK_PYTHON, or export PYSPARK_PYTHON={sys.executable}")
    assert not (tmp_path / "lake").exists()
    day.environment["PYSPARK_PYTHON"] = sys.executable
    day.whole()
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(1)


_WIDE = """
from pyspark.sql import functions as F


def wide(frame):
    return frame.withColumn("kind", F.expr("if(id = 7, repeat('x', 80000000), kind)"))
"""


_TRANSFORM = 'transform = "first_day_rows:wide"\nrestarts = 0\n'
_LAKE, _TABLE = (f"\n[sinks.{sink}" for sink in SINKS.split("[sinks.")[1:])
_ROOMY = {
    "files": _LAKE.replace('partition_by = ["kind"]\n', "") + LINES,
    "idempotent_upsert": _TABLE,
    "postgres": _DB.replace('["id"]', '["id", "kind"]'),
}


@pytest.fixture(scope="module")
def roomy_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """A JVM of its own: in Spark's 1 GB such a row, copied for sinks, may end it, and with it the others' tests."""
    with closing(WarmJvm(tmp_path_factory.mktemp("roomy"), "--driver-memory", "3g")) as started:
        yield started


@pytest.mark.parametrize("backend", _ROOMY)
def test_a_row_of_80_mb_is_written_once(
    tmp_path: Path, drivers: Drivers, roomy_jvm: WarmJvm, database: Database, backend: str
) -> None:
    write_source(tmp_path, 1)
    (tmp_path / "first_day_rows.py").write_text(_WIDE)
    conninfo = database.server.conninfo(database.name)
    drivers.whole(write_job(tmp_path, _ROOMY[backend].replace("{conninfo}", conninfo), _TRANSFORM), jvm=roomy_jvm)
    widths = "SELECT length(kind) FROM rows ORDER BY 1 DESC"
    if backend == "files":
        lines = [json.loads(line) for path in (tmp_path / "lines").glob("*.json*") for line in path.open()]
        found = sorted((len(row["kind"]) for row in lines), reverse=True)
        assert in_lake(tmp_path) == Counter(row["id"] for row in lines) == ids(1)
    elif backend == "postgres":
        found = [width for (width,) in database.execute(widths)]
    else:
        with closing(sqlite3.connect(tmp_path / "table.db")) as connection:
            found = [width for (width,) in connection.execute(widths)]
    assert found == [80_000_000, *[2] * (ROWS_A_BATCH - 1)]


def test_a_row_of_80_mb_is_refused_by_kafka_with_the_name_of_the_limit(
    tmp_path: Path, drivers: Drivers, roomy_jvm: WarmJvm, kafka_sink: KafkaSink, capfd: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path, 1)
    (tmp_path / "first_day_rows.py").write_text(_WIDE)
    day = Day(tmp_path, drivers, roomy_jvm, capfd)
    write_job(tmp_path, kafka_sink.sink(), _TRANSFORM)
    said = day.refused(1, f"sink {kafka_sink.name}: ", "a record is too large", "message.max.bytes", "\n  next: ")
    assert len(said) < 2000, "the row itself is no part of the message"
    assert kafka_sink.rows().total() == 0
    day.edit((_TRANSFORM, ""))
    day.whole()
    assert kafka_sink.amiss(tmp_path) == {}
