"""What a program or a notebook does with a job: a cell run twice, errors through Spark's query, frames of all kinds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, udf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType

from exactsink import Job, Query
from exactsink.contract import ConfigError, ExactsinkError, Fenced, PreflightError, Retryable
from exactsink.job.driver import coordinator_of
from exactsink.job.history import JobHistory
from exactsink.observe.state import Heartbeat
from exactsink_delta import Delta
from exactsink_files import Files
from exactsink_idempotent_upsert import Upsert
from tests.e2e.jobs import ids, in_lake, in_table, write_source
from tests.e2e.processes import ROOT

ANY: Any = None
SCHEMA = "id BIGINT, kind STRING, amount DOUBLE, tags MAP<STRING, INT>"


@pytest.fixture
def job(tmp_path: Path, spark: SparkSession) -> Iterator[Job]:
    url, columns = f"sqlite:///{tmp_path}/table.db", ["id", "kind", "amount"]
    table = Upsert(url=url, table="rows", keys=["id"], columns=columns, create=True)
    sinks = {"lake": Files(path=tmp_path / "lake"), "table": table}
    with closing(Job(name="orders", checkpoint=tmp_path / "checkpoint", sinks=sinks, trigger="1 second")) as made:
        yield made
        for left in spark.streams.active:
            left.stop()


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    write_source(tmp_path, 3)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "source"))


def test_a_cell_that_is_run_twice_leaves_the_query_as_it_is(
    job: Job, rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = job.start(rows)
    query.processAllAvailable()
    lake = {"backend": "files", "path": str(tmp_path / "lake")}
    other = {"name": "orders", "checkpoint": str(tmp_path / "other")}
    again = Job.from_dict({"job": other, "sinks": {"lake": lake}})
    elsewhere = rows.sparkSession.newSession().readStream.schema(SCHEMA).json(str(tmp_path / "source"))
    for beside, frame in ((job, rows), (again, rows), (job, elsewhere)):
        with pytest.raises(ConfigError, match="a query of job orders runs in this program already") as refused:
            beside.start(frame)
        assert "stop()" in refused.value.next
    for seconds in (ANY or "10", 0):
        with pytest.raises(ConfigError, match="awaitTermination takes a number of seconds above 0, and got"):
            query.awaitTermination(seconds)
    assert query.isActive
    assert job.journal().read().last_generation == 1
    query.stop()
    assert (query.isActive, query.exception()) == (False, None)
    monkeypatch.setitem(cast(Any, Heartbeat.__init__).__kwdefaults__, "seconds", 0.1)
    with job.start(rows) as restarted:
        assert restarted.id == query.id
        restarted.processAllAvailable()
        history = JobHistory.of(job.config)
        with closing(coordinator_of(history, job.sinks, job.journal(), job.events, history.state().write)) as other:
            other.start(query.id, lambda epoch: True)
        with pytest.raises(Fenced, match="has claimed the job as generation 3") as fenced:
            restarted.awaitTermination(60)
        assert (restarted.isActive, restarted.exception()) == (False, fenced.value), "it had no row to notice it by"
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(3)


@pytest.mark.parametrize("by", ["query", "job"])
def test_stop_ends_the_epoch_first(by: str, job: Job, rows: DataFrame, tmp_path: Path) -> None:
    with job if by == "job" else nullcontext():
        query = job.start(rows)
        while not query.is_in_epoch():
            assert query.isActive
        if by == "query":
            query.stop()
    assert (query.isActive, query.exception()) == (False, None)
    assert query.epochs >= 1
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(query.epochs)
    assert repr(query) == f"<Query of job orders: ended, last epoch {query.last_epoch}; sinks: lake, table>"
    assert query._repr_html_().count("<td>0</td>") == 2, "nothing is in doubt"
    assert {"stop", "awaitTermination", "lastProgress", "epochs"} <= set(dir(query))


def _refused(frame: DataFrame) -> DataFrame:
    def refuse(number: int) -> int:
        raise ValueError("no such customer")

    return frame.withColumn("id", udf(refuse, LongType(), useArrow=False)("id"))


BAD: dict[str, tuple[Any, type[ExactsinkError], str]] = {
    "a UDF's error": (_refused, Retryable, "no such customer"),
    "a NULL key": (lambda frame: frame.withColumn("id", lit(None).cast("bigint")), ExactsinkError, "id"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_ends_a_query_is_raised_as_ours_with_sparks_as_its_cause(case: str, job: Job, rows: DataFrame) -> None:
    spoils, kind, says = BAD[case]
    query = job.start(spoils(rows))
    with pytest.raises(kind) as raised:
        query.awaitTermination()
    error = raised.value
    assert says in str(error)
    assert len(str(error)) < 800
    assert error.next
    assert error.__cause__ is not None
    assert error._render_traceback_()[0].startswith(f"{type(error).__name__}: ")
    assert query.exception() is error
    assert "failed" in repr(query)


NO_FRAMES: dict[str, Any] = {
    "None": None,
    "a name": "orders",
    "Arrow": pa.table({"id": [1]}),
    "DataStreamWriter": type("DataStreamWriter", (), {})(),
}


@pytest.mark.parametrize("case", list(NO_FRAMES))
def test_what_is_no_frame_is_refused_by_its_type(case: str, job: Job) -> None:
    kind = type(NO_FRAMES[case]).__name__
    for call in (job.start, lambda frame: job.write(frame, run="r")):
        with pytest.raises(
            ConfigError, match=rf"takes a (streaming|batch) frame of Spark, and got .*{kind}"
        ) as refused:
            call(NO_FRAMES[case])
        assert refused.value.next.startswith("give it ")


def test_a_run_is_named_by_a_date_or_a_text(job: Job, spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3).select("id", lit("a").alias("kind"), lit(1.5).alias("amount"))
    result = job.write(frame, run=date(2026, 11, 20))
    assert (result.run, result.already_done) == ("2026-11-20", False)
    assert job.write(frame, run="2026-11-20").already_done


STOPPED: Any = SimpleNamespace(isStreaming=True, sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))
REFUSED: dict[str, tuple[Callable[[Job, DataFrame], object], str]] = {
    "a number as a run": (lambda job, rows: job.write(rows.sparkSession.range(3), run=ANY or 20261), "is int 20261"),
    "a stopped session": (lambda job, rows: job.start(STOPPED), "the frame's Spark session is stopped"),
    "an empty run": (lambda job, rows: job.write(rows.sparkSession.range(3), run=" "), "a batch run needs a name"),
    "a table's name": (lambda job, rows: job.start(ANY or "orders"), 'spark.readStream.table("NAME")'),
    "a route without frames": (lambda job, rows: job.start(rows, lambda frame: ANY), "the route returns NoneType"),
    "a route in a list": (lambda job, rows: job.start(rows, ANY or [rows]), "the route is list"),
    "a route that counts": (
        lambda job, rows: job.start(rows, lambda frame: ANY or [frame.count()]),
        "refuses the route",
    ),
    "an aggregate to append": (
        lambda job, rows: job.start(rows.groupBy("id", "kind", "amount").count()),
        "streaming aggregations",
    ),
    "foreachBatch(job)": (lambda job, rows: job(rows, 0), "frame.writeStream.foreachBatch(job.foreach_batch())"),
    "foreachBatch(job.foreach_batch)": (lambda job, rows: job.foreach_batch(ANY or rows, 0), "foreachBatch(job.fo"),
    "a route's one frame": (lambda job, rows: job.start(rows, lambda frame: ANY or frame), "returns DataFrame"),
    "a distribution by no column": (
        lambda job, rows: Job(name="d", checkpoint="d", sinks={"l": Files(path="l", distribution="hash(uid)")}).start(
            rows
        ),
        "sink l: Spark refuses its distribution: [UNRESOLVED_COLUMN",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_a_mistake_of_a_program_is_refused_before_the_claim(case: str, job: Job, rows: DataFrame) -> None:
    call, says = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        call(job, rows)
    assert says in str(refused.value)
    assert job.journal().read().last_generation == 0


def test_two_columns_of_one_name_are_refused_before_the_first_row(job: Job, rows: DataFrame, tmp_path: Path) -> None:
    lake = Job(name="twice", checkpoint=tmp_path / "twice", sinks={"lake": Files(path=tmp_path / "l")})
    with pytest.raises(PreflightError, match="sink lake: the rows have 2 columns id"):
        lake.start(rows.select("id", col("id")))
    with pytest.raises(PreflightError, match="sink lake: the rows have no columns"):
        lake.start(rows.select())
    assert not (tmp_path / "l").exists()


def test_sinks_that_share_a_place_are_told_apart_from_those_that_lose_rows(rows: DataFrame, tmp_path: Path) -> None:
    places = {"a": tmp_path / "lake", "b": tmp_path / "lake", "c": tmp_path / "checkpoint/lake"}
    sinks: dict[str, Any] = {name: Files(path=place) for name, place in places.items()}
    sinks |= {"d": Delta(path=tmp_path / "lake"), "e": Delta(path=tmp_path / "checkpoint/table")}
    sinks["f"] = Files(path=tmp_path)
    made = Job(name="shared", checkpoint=tmp_path / "checkpoint", sinks=sinks, output_mode="update")
    found = {name: [(f.severity, f.message) for f in each] for name, each in made.preflight(rows).findings.items()}
    assert [severity for severity, _ in found["a"]] == ["warning"]
    assert "emits a key again" in found["a"][0][1]
    assert any(severity == "warning" and "as sink a does" in message for severity, message in found["b"])
    for name in "ce":
        assert any(severity == "error" and "the job's own folder" in message for severity, message in found[name])
    assert ("error", f"sink a, which is files, has the same target delta:{tmp_path}/lake") in found["d"]
    said = f"the job's own folder {tmp_path}/checkpoint is in {tmp_path}: readers may take its files for rows"
    assert ("warning", said) in found["f"]


def test_a_jobs_file_is_the_job_and_its_users_alone(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="relative paths in a file"):
        job.to_toml(tmp_path / "job.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "lake")
    sinks = {"lake": {"backend": "files", "path": "${PLACE}"}}
    made = Job(name="orders", checkpoint="c", sinks=sinks, require="exactly_once")
    assert "${PLACE}" in made.to_toml("job.toml")
    file = tmp_path / "job.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    read = Job.from_toml(file)
    assert (read.config.job, read.config.sinks) == (made.config.job, made.config.sinks)
    assert read.sinks["lake"].backend.target == made.sinks["lake"].backend.target == f"file://{tmp_path}/lake"
    with pytest.raises(ConfigError, match="can't be written"):
        made.to_toml("job.toml")
    with pytest.raises(ConfigError, match=r"sinks\.lake\.format: one of") as wrong:
        Job(name="orders", checkpoint="c", sinks={"lake": {"backend": "files", "path": "x", "format": "parket"}})
    assert "make the Job again" in wrong.value.next
    made_of: Any = Job
    for way, given, said in (("from_dict", "job.toml", "tables are str"), ("from_toml", {}, "and got its tables")):
        with pytest.raises(ConfigError, match=said):
            getattr(made_of, way)(given)


WRONG = """
reveal_type(stream)
Job(name="orders", checkpoint="c", sinks={}, output_mode="upsert")
Upsert(url="u", table="t", keys="k")
"""


def test_a_users_script_is_checked_by_its_types(tmp_path: Path) -> None:
    script = tmp_path / "stream.py"
    script.write_text((ROOT / "examples/python/orders.py").read_text() + WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={ROOT}/.mypy_cache/users", "--config-file="]
    checked = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
    lines = checked.stdout.splitlines()
    revealed = [line for line in lines if "Revealed type is" in line]
    assert [line.endswith(('-> int"', '-> builtins.int"')) for line in revealed] == [True]
    wrong = [line for line in lines if "error" in line and "Found" not in line]
    assert len(wrong) == 2, checked.stdout
    assert "output_mode" in wrong[0]
    assert 'Argument "keys" to "Upsert"' in wrong[1]


def test_query_has_the_names_of_sparks_own() -> None:
    assert {name for name in dir(StreamingQuery) if not name.startswith("_")} <= set(dir(Query))
