"""Arrow between the JVM and its workers: a job's own session is spared checks, and only its narrow rows a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from exactsink.protocol.votes import EpochPlan
from exactsink.spark import Job
from exactsink.spark.arrow_settings import BatchLimit, advice
from exactsink.spark.one_pass import OnePass
from tests.e2e.jobs import write_job

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
NONE = "2147483647"
NARROW = 100.0


def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def explode(frame: DataFrame) -> DataFrame:
    return frame.select(F.explode(F.array("value")).alias("value"))


def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().select("value")


def test_a_pass_lifts_the_limit_for_narrow_rows_and_sets_it_again_for_wide_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job.from_toml(write_job(tmp_path, '[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\n'))
    session = spark.newSession()
    cells = stream(spark).selectExpr("repeat('x', CAST(value AS INT)) AS value")
    one_pass = OnePass(cells, job.sinks)
    found = []
    for length in (100, 700, 1_000, 100):
        frame = session.range(0, 50, 1, 2).selectExpr(f"repeat('x', {length}) AS value")
        assert one_pass.write(frame, EpochPlan("job", 0, 1, "token", {})) == []
        found.append(session.conf.get(LIMIT, None))
    assert found == [NONE, NONE, None, NONE]
    assert spark.conf.get(LIMIT, None) is None


def test_the_limit_stays_where_lifting_it_could_harm(spark: SparkSession) -> None:
    frames = {
        "a batch, whose session is the user's own": spark.range(1).toDF("value"),
        "Python in the plan": stream(spark).mapInArrow(passed_on, "value bigint"),
        "a generator": explode(stream(spark)),
    }
    for name, frame in frames.items():
        session = spark.newSession()
        BatchLimit(frame).adapt(session, NARROW)
        assert session.conf.get(LIMIT, None) is None, name
    for key, value in ((LIMIT, "1000000"), (RECORDS, "0")):  # a user's own; no bound but the bytes
        session = spark.newSession()
        session.conf.set(key, value)
        before = session.conf.get(LIMIT, None)
        limit = BatchLimit(stream(spark))
        for width in (NARROW, 1e6, NARROW):
            limit.adapt(session, width)
        assert session.conf.get(LIMIT, None) == before


def test_a_session_of_exactsink_run_does_without_arrows_checks_and_others_are_advised(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert advice(spark) is None
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.executorEnv.ARROW_ENABLE_UNSAFE_MEMORY_ACCESS") == "true"
    monkeypatch.setattr(spark.sparkContext, "master", "spark://somewhere")
    assert advice(spark) is None
    conf.set("spark.executorEnv.ARROW_ENABLE_UNSAFE_MEMORY_ACCESS", "false")
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: conf)
    found = advice(spark)
    assert found is not None
    assert "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS=true" in found
