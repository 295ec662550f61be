"""`[transform]`: a query over the source's frame, in streams that keep state, too, and in two jobs of one session."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exactsink.contract import ConfigError
from exactsink.spark import Job
from exactsink.spark.session import read_source
from tests.e2e.jobs import ROWS_A_BATCH, SINKS, ids, in_lake, in_table, write_job, write_source

TOTALS = """
[sinks.totals]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/totals.db"
table = "totals"
keys = ["kind"]
create = true
"""


def _job(folder: Path, query: str, sinks: str = SINKS, job: str = "") -> Job:
    folder.mkdir(exist_ok=True)
    write_source(folder, 2)
    return Job.from_toml(write_job(folder, f"\n[transform]\n{query}\n{sinks}", job))


def test_two_jobs_of_one_session_each_have_a_source_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """Also beside a view of the user's by that name, and in a query that keeps state over a start of its own."""
    spark.sql("SELECT 'mine' AS whose").createOrReplaceTempView("source")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "odd.sql").write_text("-- odd ones\nSELECT * FROM source WHERE id % 2 = 1;\n")
    odd = _job(tmp_path / "odd", 'sql_file = "odd.sql"')
    query = "SELECT kind, count(*) AS n FROM source GROUP BY kind"
    summed = _job(tmp_path / "summed", f'sql = "{query}"', TOTALS, 'output_mode = "update"\n')
    frames = [read_source(job.config, spark) for job in (odd, summed)]
    queries = [job.start(frame) for job, frame in zip((odd, summed), frames, strict=True)]
    for started in queries:
        started.awaitTermination()
    assert in_lake(tmp_path / "odd") == in_table(tmp_path / "odd")
    assert in_lake(tmp_path / "odd").keys() == {row for row in ids(2) if row % 2}

    write_source(tmp_path / "summed", 3)
    summed.start(read_source(summed.config, spark)).awaitTermination()
    with closing(sqlite3.connect(tmp_path / "summed" / "totals.db")) as connection:
        totals = dict(connection.execute("SELECT kind, n FROM totals"))
    assert sum(totals.values()) == 3 * ROWS_A_BATCH
    assert spark.table("source").collect()[0]["whose"] == "mine"
    for job in (odd, summed):
        job.close()
    spark.catalog.dropTempView("source")


@pytest.mark.parametrize(
    ("query", "what", "why"),
    [
        ("SELECT id,\n kind kind\nFORM source", "Spark refuses [transform] sql", "(line 3, pos 0)"),
        ("SELECT idd FROM source", "Spark refuses [transform] sql", "line 1 pos 7"),
        ("DROP VIEW kept", "Spark refuses [transform] sql", "at or near 'DROP'"),
        ("SELECT 1 AS id", "[transform] sql gives the same rows for every batch", "does not read the table `source`"),
    ],
)
def test_what_is_no_query_over_the_source_is_refused(
    spark: SparkSession, tmp_path: Path, query: str, what: str, why: str
) -> None:
    spark.range(1).createOrReplaceTempView("kept")
    job = _job(tmp_path, f'sql = """{query}"""')
    with pytest.raises(ConfigError) as refused:
        read_source(job.config, spark)
    assert refused.value.what == what
    assert why in refused.value.why
    assert "\n" not in str(refused.value.why)
    assert spark.table("kept").count() == 1
