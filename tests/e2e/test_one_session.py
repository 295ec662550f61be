"""Jobs in one Spark session: what is refused, what stays whole when a target fails, and a query made manually."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from exactsink.contract import Committer, Event, Fatal, LineageError, PreflightError
from exactsink.spark import Job
from exactsink.spark.session import read_source
from exactsink.spark.supervise import supervise
from tests.e2e.jobs import SINKS, SOURCE, ids, in_lake, in_table, write_job, write_source


class _Once:
    """Does something when a protocol point is first reached."""

    def __init__(self, point: str, edge: str, epoch: int) -> None:
        self.place = (point, edge, epoch)
        self.act = lambda: None
        self.done = False

    def __call__(self, event: Event) -> None:
        if (event.name, event.edge, event.epoch) == self.place and not self.done:
            self.done = True
            self.act()


def _run(job: Job, spark: SparkSession) -> None:
    supervise(job, lambda: read_source(job.config, spark), wait=lambda attempt: None)


def test_target_that_becomes_unwritable_stops_the_job_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 3)
    path = write_job(tmp_path)
    hidden = tmp_path / "lake" / "_exactsink"
    breaks = _Once("open_epoch", "after", 1)

    def block() -> None:
        hidden.rename(tmp_path / "aside")
        hidden.write_text("in the way")

    breaks.act = block
    with pytest.raises(Fatal, match=r"sink lake: the target can't be written"):
        _run(Job.from_toml(path, [breaks]), spark)
    assert breaks.done
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(1)

    hidden.unlink()
    (tmp_path / "aside").rename(hidden)
    _run(Job.from_toml(path), spark)
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(3)


def test_query_made_manually_is_the_same_and_its_sinks_hear_where_the_source_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: set[tuple[object, ...]] = set()
    monkeypatch.setattr(Committer, "source_reached", lambda self, epoch, ends: heard.add((epoch, *ends)))
    write_source(tmp_path, 3)
    job = Job.from_toml(write_job(tmp_path))
    body = job.foreach_batch()
    for _ in range(2):  # the second run of the query claims anew, and finds nothing to do
        writer = read_source(job.config, spark).writeStream.foreachBatch(body).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        write_source(tmp_path, 4)
    assert job.journal().read().last_generation == 2
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(4)
    assert heard == {(epoch, f'{{"logOffset":{epoch}}}') for epoch in range(4)}


def test_query_made_manually_with_another_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 1)
    job = Job.from_toml(write_job(tmp_path))
    query = job.foreach_batch()
    writer = read_source(job.config, spark).writeStream.foreachBatch(query).trigger(availableNow=True)
    with pytest.raises(PySparkException):
        writer.option("checkpointLocation", str(tmp_path / "elsewhere")).start().awaitTermination()
    assert isinstance(query.failure, LineageError)
    assert "checkpointLocation" in str(query.failure)
    assert not (tmp_path / "lake").exists()


def test_a_bare_checkpoint_is_a_local_folder_whatever_sparks_default_file_system_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_source(tmp_path, 2)
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://elsewhere/")
    session.conf.set("fs.viewfs.mounttable.elsewhere.linkFallback", (tmp_path / "elsewhere").as_uri())
    source, odd = SOURCE.replace('path = "', 'path = "file:'), str(tmp_path / "check:%20 point")
    _run(Job.from_toml(write_job(tmp_path, source=source, checkpoint=odd)), session)
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(2)
    assert not (tmp_path / "elsewhere").exists()


def test_where_columns_and_json_lines_in_one_pass(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 2)
    sinks = (
        SINKS
        + """
where = "kind = 'k1'"

[sinks.lines]
backend = "files"
path = "{folder}/lines"
format = "json"
columns = ["id", "tags"]
where = "amount < 1"
distribution = 3
"""
    )
    _run(Job.from_toml(write_job(tmp_path, sinks)), spark)
    assert in_lake(tmp_path) == ids(2)
    assert set(in_table(tmp_path)) == {row for row in ids(2) if row % 500 % 3 == 1}
    lines = spark.read.json(str(tmp_path / "lines")).orderBy("id").collect()
    assert [(row.id, row.tags.n) for row in lines] == [(b * 500 + n, n) for b in range(2) for n in range(4)]


def test_batches_without_rows_are_epochs_too(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 2)
    job = Job.from_toml(write_job(tmp_path))

    def nothing(frame: DataFrame) -> DataFrame:
        return frame.where("1 = 0")

    supervise(job, lambda: nothing(read_source(job.config, spark)))
    decision = job.journal().read().decision
    assert decision is not None
    assert decision.epoch == 1
    assert in_table(tmp_path) == in_lake(tmp_path) == ids(0)


def test_early_rows_beside_exact_sinks_must_be_allowed(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 2)
    direct = SINKS + 'strategy = "direct"\n'
    with pytest.raises(PreflightError, match="would show rows before the other sinks have them"):
        _run(Job.from_toml(write_job(tmp_path, direct)), spark)
    with pytest.raises(PreflightError, match=r"\[job\] require"):
        _run(Job.from_toml(write_job(tmp_path, direct, 'require = "exactly_once"\n')), spark)
    assert not (tmp_path / "lake").exists()
    assert not (tmp_path / "table.db").exists()
    reported: list[Event] = []
    _run(Job.from_toml(write_job(tmp_path, direct, "allow_early_rows = true\n"), [reported.append]), spark)
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(2)
    promised = {event.fields["sink"]: event.fields["guarantee"] for event in reported if event.name == "sink"}
    assert promised == {"lake": "exactly once", "table": "effectively once"}
