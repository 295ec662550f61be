"""Mistakes with a job that has run: each is refused, or stops the job, and costs no row; the message leads on."""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.first_day import Day
from tests.e2e.jobs import LINES, ROWS_A_BATCH, SINKS, SPARK, ids, in_lake, in_table, write_job, write_source
from tests.e2e.kafka_job import KafkaSink
from tests.e2e.postgres_job import Database
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.postgres import PostgresServer

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
_OFTEN = 'trigger = "1 second"\n'


def test_names_keys_and_folders_that_change_under_a_job(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, capfd: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path, 1)
    day = Day(tmp_path, drivers, jvm, capfd)
    write_job(tmp_path)
    day.whole()
    write_source(tmp_path, 2)

    day.edit(('name = "e2e"', 'name = "shop"'))
    belongs = "the journal belongs to job e2e, and this is job shop: ids in every sink contain the name"
    day.refused(5, belongs, "\n  next: use the old job name, or give this job its own checkpoint")
    day.edit(('name = "shop"', 'name = "e2e"'))

    day.edit(('keys = ["id"]', 'keys = ["id", "kind"]'))
    said = day.refused(
        5, "sink table: table rows has no PRIMARY KEY or UNIQUE index over exactly id, kind\n  fix: CREATE"
    )
    day.edit(('keys = ["id", "kind"]', 'keys = ["id"]'))
    assert day.fixes(said)[0].startswith('CREATE UNIQUE INDEX "exactsink_rows_id_kind" ON "rows" ("id", "kind");')

    (tmp_path / "checkpoint").rename(tmp_path / "mislaid")
    gone = f"and its checkpoint {tmp_path}/checkpoint is gone: a new checkpoint starts at epoch 0 again"
    day.refused(
        5, "the journal belongs to query ", gone, f"\n  next: restore the checkpoint; or `exactsink adopt {day.file}`"
    )
    (tmp_path / "mislaid").rename(tmp_path / "checkpoint")

    drivers.killed(day.file, Fault("decide", "after", "kill", 1), jvm=jvm)
    day.edit(("[sinks.lake]", "[sinks.pond]"))
    target = f"backend files (rename), target file://{tmp_path}/lake"
    lacks = "the config lacks sink lake as it was: epoch 1 may be unfinished, and holds rows: "
    recover = f"\n  next: put [sinks.lake] back as it was, `exactsink recover {day.file}`, then change it"
    day.refused(2, f"{lacks}{target}{recover}")
    day.edit(("[sinks.pond]", "[sinks.lake]"))
    assert day.command("recover --take-over")[0] == 0, "a killed driver is taken for alive for a minute"
    day.edit(("[sinks.lake]", "[sinks.pond]"))
    write_source(tmp_path, 3)
    day.whole()
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(3)

    shutil.rmtree(tmp_path / "source")
    day.refused(
        2, f"[PATH_NOT_FOUND] Path does not exist: {tmp_path}/source", "\n  next: fix [source] or the transform"
    )
    (tmp_path / "source").mkdir()
    day.whole()
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(3), "a source without files is no mistake, and gives no row"


def test_a_job_that_is_started_twice_or_interrupted(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, other_jvm: WarmJvm, capfd: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path, 1)
    day = Day(tmp_path, drivers, jvm, capfd)
    write_job(tmp_path, job=_OFTEN + "restarts = 0\n")
    first = drivers.start(day.file, jvm=jvm)
    first.until(lambda: "exactsink.epoch epoch job=e2e epoch=0" in first.reported, "its epoch")
    day.edit((_OFTEN, ""))
    drivers.whole(day.file, jvm=other_jvm)
    write_source(tmp_path, 2)
    assert first.exit_code() == 4, first.reported
    fenced = first.reported[first.reported.rindex("exactsink: ") :]
    assert re.search(r"exactsink: .*(claimed|generation 2).*\n  next: ", fenced, re.DOTALL), fenced
    first.end()
    day.whole()

    day.edit(("restarts = 0\n", _OFTEN + "restarts = 0\n"))
    interrupted = drivers.start(day.file, jvm=jvm)
    write_source(tmp_path, 3)
    interrupted.until(lambda: "exactsink.epoch epoch job=e2e epoch=2" in interrupted.reported, "its epoch")
    interrupted.send(signal.SIGINT)
    assert interrupted.exit_code() == 130, interrupted.reported
    said = r"^exactsink: .*; nothing decided is lost, and the (same command|next start) continues$"
    assert re.search(said, interrupted.reported, re.MULTILINE), interrupted.reported
    interrupted.end()
    day.edit((_OFTEN, ""))
    day.whole()
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(3)


def test_a_server_that_goes_down_in_the_middle_is_named(
    tmp_path: Path,
    drivers: Drivers,
    jvm: WarmJvm,
    own_server: PostgresServer,
    own_database: Database,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_source(tmp_path, 2)
    day = Day(tmp_path, drivers, jvm, capfd)
    sinks = SINKS + _DB.replace("{conninfo}", own_server.conninfo(own_database.name))
    write_job(tmp_path, sinks, "restarts = 0\n")
    driver = drivers.start(day.file, Fault("decide", "after", "stall", 1), jvm=jvm)
    driver.stopped()
    own_server.stop("immediate")
    driver.send(signal.SIGCONT)
    try:
        assert driver.exit_code() == 75, driver.reported
    finally:
        own_server.start()
    down = driver.reported[driver.reported.rindex("exactsink: ") :]
    assert "sink db" in down, down
    assert "\n  next: check that the server is up, then start the job again" in down, down
    assert "Traceback" not in driver.reported
    driver.end()
    day.whole()
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(2)
    assert Counter(row for (row,) in own_database.execute("SELECT id FROM rows")) == ids(2)


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
