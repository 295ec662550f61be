"""Files by Spark's own writers are those of ours; drivers, tasks and votes that are lost under them lose no row."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from exactsink.contract import ConfigError
from exactsink.job.history import JobHistory
from exactsink.spark import Job
from exactsink.testing import Fault
from exactsink.toolkit.waiting import backoff
from tests.e2e import slow_tasks
from tests.e2e.drivers import KILLED, Drivers
from tests.e2e.jobs import LINES, PARTICIPANTS, SPARK, TWO_FILES, ids, in_lake, leftovers, write_job, write_source
from tests.e2e.warm_jvm import WarmJvm

SINK = """
[sinks.lake]
backend = "files"
path = "{{folder}}/lake"
format = "{}"
writer = "{}"
"""
BY_KIND = 'partition_by = ["kind"]\n'
MICROS = "spark.sql.parquet.outputTimestampType"


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_sparks_files_are_ours(spark: SparkSession, tmp_path: Path, form: str) -> None:
    rows = spark.range(0, 300, 1, 3).selectExpr(
        "id",
        "CASE WHEN id % 3 > 0 THEN concat('k:', id % 3) END AS kind",
        "named_struct('then', timestamp_micros(-5364662400654321 + id), 'text', 'a\"\\n\u00e9') AS inner",
        "map('a', double('NaN'), 'b', -0.0D) AS `a(*)`",
        "array(id, NULL) AS list",
        "cast('x' AS BINARY) AS bytes",
        "date'1800-01-01' AS day",
        "cast(id AS DECIMAL(10, 2)) AS exact",
    )
    found = []
    for writer in ("arrow", "spark"):
        (tmp_path / writer).mkdir()
        job = Job.from_toml(write_job(tmp_path / writer, SINK.format(form, writer) + BY_KIND))
        if (form, writer) == ("parquet", "spark"):
            spark.conf.set(MICROS, "INT96")
            with pytest.raises(ConfigError, match=f"{MICROS} is INT96"):
                job.write(rows, run="r")
        spark.conf.set(MICROS, "TIMESTAMP_MICROS")
        assert job.write(rows, run="r").rows == {"lake": 300}
        assert job.write(rows.where("id < 0"), run="none").rows == {"lake": 0}
        spark.conf.unset(MICROS)
        with closing(JobHistory.of(job.config, "r").journal(backoff)) as journal:
            decision = journal.read().decision
        assert decision is not None
        assert leftovers(tmp_path / writer) == []
        lake = tmp_path / writer / "lake"
        places = {str(path.parent.relative_to(lake)) for path in lake.rglob(f"*.{form}")}
        found.append((_held(lake, form), places, decision))
    (ours, our_places, decided), (sparks, sparks_places, decided_too) = found
    assert sparks == ours
    assert len(sparks_places) == 3
    assert sparks_places == our_places
    if form == "parquet":  # lines are hashed as lines, or as what they are made of
        digests = {sum(c.digest for c in d.committables("lake")) % (1 << 64) for d in (decided, decided_too)}
        assert len(digests) == 1


def test_what_shares_a_frame_is_written_by_the_sinks_own_writers(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(5).selectExpr("id", "'k' AS kind")
    with pytest.raises(ConfigError, match="shares one"):
        Job.from_toml(write_job(tmp_path, SINK.format("json", "spark") + LINES)).preflight(rows)
    job = Job.from_toml(write_job(tmp_path, SINK.format("json", "auto") + LINES))
    assert set(job.preflight(rows).passes.writers().values()) == {"backend"}


def test_no_row_is_lost_or_doubled_by_kills_and_lost_votes(tmp_path: Path, drivers: Drivers, jvm: WarmJvm) -> None:
    write_source(tmp_path, 5 * PARTICIPANTS)

    def job(act: str, partition: int) -> Path:
        spark = SPARK.replace("local[2]", "local[2,4]") + slow_tasks.CONF % (act, partition)
        return write_job(tmp_path, SINK.format("parquet", "spark"), slow_tasks.TRANSFORM, TWO_FILES, spark)

    driver = drivers.start(job("hold", 0), jvm=jvm)
    driver.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of Spark's write")
    driver.send(signal.SIGKILL)
    assert driver.exit_code() == KILLED
    driver.end()

    dies = job("die", 1)
    drivers.killed(dies, Fault("decide", "before", "kill", 1), jvm=jvm)  # what its task wrote twice is counted once
    assert in_lake(tmp_path) == ids(PARTICIPANTS)
    drivers.killed(dies, Fault("decide", "after", "kill", 1), jvm=jvm)
    [voted] = (tmp_path / "lake" / "_exactsink").glob("*.e1.*")
    shutil.rmtree(voted)
    code, reported = drivers.run(dies, Fault("commit:lake", "after", "kill", 2), jvm=jvm)
    assert code == KILLED
    assert "redecided" in reported
    drivers.killed(dies, Fault("complete", "before", "kill", 3), jvm=jvm)
    drivers.whole(dies, jvm=jvm)
    assert in_lake(tmp_path) == ids(5 * PARTICIPANTS)
    assert leftovers(tmp_path) == []


def _held(lake: Path, form: str) -> tuple[pa.Schema | None, list[str]]:
    """Return what the files say, row by row."""
    if form == "json":
        return None, sorted(line for path in lake.rglob("*.json") for line in path.read_text().splitlines())
    table = ds.dataset(str(lake), format="parquet", partitioning="hive").to_table()
    return table.schema.remove_metadata(), sorted(map(str, table.to_pylist()))
