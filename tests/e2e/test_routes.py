"""A route cuts one batch into a frame per sink: every frame's rows exactly once, also when the query keeps state."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from exactsink.contract import ConfigError, Fatal
from exactsink.protocol.coordinator import Coordinator
from exactsink.spark import Job
from exactsink.spark.one_pass import OnePass
from exactsink.spark.session import read_source
from exactsink.spark.supervise import supervise
from exactsink.spark.versions import jvm_of
from tests.e2e.jobs import ids, in_lake, in_table, write_job, write_source


def _by_parity(frame: DataFrame) -> Mapping[str, DataFrame]:
    return {"table": frame.where("id % 2 = 1").repartition(3), "lake": frame.where("id % 2 = 0")}


def _run(job: Job, spark: SparkSession) -> None:
    job.start(read_source(job.config, spark), route=_by_parity).awaitTermination()
    job.close()


@pytest.mark.parametrize("fan_out", ["", 'fan_out = "recompute"\ndeterministic = true\n'], ids=["persist", "recompute"])
def test_each_sink_gets_its_frame_once(spark: SparkSession, tmp_path: Path, fan_out: str) -> None:
    write_source(tmp_path, 3)
    _run(Job.from_toml(write_job(tmp_path, job=fan_out)), spark)
    assert in_lake(tmp_path) == Counter(row for row in ids(3) if row % 2 == 0)
    assert in_table(tmp_path) == Counter(row for row in ids(3) if row % 2 == 1)
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == 0, "nothing stays cached"


def test_route_of_a_batch_run(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "'k' AS kind", "1D AS amount")
    result = Job.from_toml(write_job(tmp_path)).write(rows, run="r", route=_by_parity)
    assert result.rows == {"lake": 50, "table": 50}
    assert in_lake(tmp_path) == Counter(range(0, 100, 2))
    assert in_table(tmp_path) == Counter(range(1, 100, 2))


def test_rows_that_are_lost_between_two_sinks_are_not_computed_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is not deterministic: a row that is computed again would go to both sinks, or to none."""
    coin = F.udf(lambda: uuid4().int % 2, "int").asNondeterministic()
    rows = spark.range(0, 400, 1, 2).selectExpr("id", "'k' AS kind", "1D AS amount").withColumn("coin", coin())
    real, lost = OnePass.write, []

    def losing(self: OnePass, *args: object) -> object:
        votes = real(self, *args)  # type: ignore[arg-type]
        for kept in () if lost else list(spark.sparkContext._jsc.getPersistentRDDs()):
            lost.append(kept)
            spark.sparkContext._jsc.sc().unpersistRDD(kept, True)  # as if their executor had died
        return votes

    monkeypatch.setattr(OnePass, "write", losing)
    monkeypatch.setattr("exactsink.spark.batch.backoff", lambda attempt: None)
    job = Job.from_toml(write_job(tmp_path))
    job.write(rows, run="r", route=lambda f: {"table": f.where("coin = 0"), "lake": f.where("coin = 1")})
    assert lost
    assert in_lake(tmp_path) + in_table(tmp_path) == Counter(range(400))
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == 0


def test_names_of_the_route_must_be_the_sinks(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 1)
    job = Job.from_toml(write_job(tmp_path))
    frame = read_source(job.config, spark)
    for names in (["lake"], ["lake", "table", "more"]):
        with pytest.raises(ConfigError, match="the route gives frames for"):
            job.start(frame, route=lambda f, names=names: dict.fromkeys(names, f))
    assert not (tmp_path / "checkpoint").exists()


def test_recompute_wants_a_deterministic_plan(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="deterministic = true"):
        Job.from_toml(write_job(tmp_path, job='fan_out = "recompute"\n'))


@pytest.mark.parametrize("fan_out", ["", 'fan_out = "recompute"\ndeterministic = true\n'], ids=["persist", "recompute"])
def test_route_from_the_file_over_a_stateful_query_that_is_replayed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fan_out: str
) -> None:
    """One of the frames is pruned to nothing, and the driver ends between its commit and Spark's own; the tasks of the
    batch that is skipped then fail, and are worth another try.
    """
    write_source(tmp_path, 4)
    name = f"shapes_{len(fan_out)}"  # one process knows one module of a name
    (tmp_path / f"{name}.py").write_text(
        "def by_kind(frame):\n"
        "    works = \"assert_true(reflect('java.lang.System', 'getProperty', 'broken', 'no') = 'no') IS NULL\"\n"
        "    return frame.where(works).groupBy('kind').count()\n"
        "def cut(frame):\n    return {'counts': frame, 'none': frame.where('1 = 0')}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sinks = "".join(
        f"""
[sinks.{name}]
backend = "idempotent_upsert"
url = "sqlite:///{{folder}}/{name}.db"
table = "counts"
keys = ["kind"]
create = true
"""
        for name in ("counts", "none")
    )
    settings = f'transform = "{name}:by_kind"\nroute = "{name}:cut"\noutput_mode = "update"\n{fan_out}'
    path = write_job(tmp_path, sinks, settings)
    properties = jvm_of(spark).java.lang.System
    real, ended = Coordinator.run_epoch, []

    def ends_once(self: Coordinator, batch: object) -> object:
        result = real(self, batch)  # type: ignore[arg-type]
        if batch.epoch == 1 and not ended:  # type: ignore[attr-defined]
            ended.append(properties.setProperty("broken", "yes"))
            raise Fatal("the driver ends here")
        return result

    monkeypatch.setattr(Coordinator, "run_epoch", ends_once)
    with pytest.raises(Fatal, match="ends here"):
        supervise(job := Job.from_toml(path), lambda: read_source(job.config, spark))
    job = Job.from_toml(path)
    supervise(job, lambda: read_source(job.config, spark), lambda attempt: properties.clearProperty("broken"))
    assert job.journal().read().last_generation == 3
    with closing(sqlite3.connect(tmp_path / "counts.db")) as connection:
        counts = dict(connection.execute("SELECT kind, count FROM counts").fetchall())
    assert counts == {"k0": 4 * 167, "k1": 4 * 167, "k2": 4 * 166}
