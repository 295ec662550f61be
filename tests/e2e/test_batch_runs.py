"""Batch runs on Spark: each decided once, in a history of its own."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from exactsink.cli.main import main
from exactsink.contract import ConfigError, Event, Fatal, PreflightError, Retryable
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.journal import Journal
from exactsink.spark import Job
from exactsink.spark.one_pass import OnePass
from exactsink.spark.session import read_source
from exactsink.spark.supervise import supervise
from exactsink_idempotent_upsert.backend import UpsertBackend
from tests.e2e.jobs import SINKS, THREE_SINKS, ids, in_lake, in_table, write_job, write_source
from tests.servers.waiting import wait_until


def _rows(spark: SparkSession, first: int, count: int = 300) -> DataFrame:
    return spark.range(first, first + count, 1, 3).selectExpr("id", "concat('k', id % 3) AS kind", "id / 4 AS amount")


def test_run_is_written_once_and_a_known_run_gives_its_old_result(spark: SparkSession, tmp_path: Path) -> None:
    reported: list[Event] = []
    job = Job.from_toml(write_job(tmp_path), [reported.append])
    first = job.write(_rows(spark, 0), run="2026-11-20")
    assert (first.epoch, first.already_done, first.rows) == (0, False, {"lake": 300, "table": 300})

    before = sorted(path.name for path in (tmp_path / "lake").rglob("*"))
    again = Job.from_toml(write_job(tmp_path), [reported.append]).write(_rows(spark, 5000), run="2026-11-20")
    assert (again.epoch, again.already_done, again.rows) == (0, True, {"lake": 300, "table": 300})
    assert sorted(path.name for path in (tmp_path / "lake").rglob("*")) == before
    assert in_lake(tmp_path) == in_table(tmp_path) == Counter(range(300))
    assert [event.fields["run"] for event in reported if event.name == "run_known"] == ["2026-11-20"]
    assert job.journal().read().last_generation == 0, "the stream's own history is untouched"

    later = Job.from_toml(write_job(tmp_path, THREE_SINKS), [reported.append])
    assert later.write(_rows(spark, 0), run="2026-11-20").missing == ("lines",)
    assert (again.missing, reported[-1].fields["missing"]) == ((), "lines")
    assert not (tmp_path / "lines").exists()
    wider = _rows(spark, 0).withColumn("amount", col("amount").cast("float"))
    assert (later.write(wider, run="2026-11-20").changed, again.changed) == (("lake", "table"), ())
    assert reported[-1].fields["changed"] == "lake, table"
    renamed = Job.from_toml(write_job(tmp_path, SINKS.replace("sinks.lake", "sinks.sea")), [reported.append])
    assert renamed.write(_rows(spark, 0), run="2026-11-20").missing == ()


def test_runs_come_in_any_order_and_at_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    path = write_job(tmp_path)
    runs = {"b": 1000, "a": 0, "d": 3000, "c": 2000}
    with ThreadPoolExecutor(len(runs)) as pool:
        results = pool.map(lambda item: Job.from_toml(path).write(_rows(spark, item[1]), run=item[0]), runs.items())
        assert not any(result.already_done for result in results)
    expected = Counter(first + n for first in runs.values() for n in range(300))
    assert in_lake(tmp_path) == in_table(tmp_path) == expected


@pytest.mark.parametrize("step", ["decide", "keep"])
def test_run_whose_driver_ended_is_finished_or_starts_over(spark: SparkSession, tmp_path: Path, step: str) -> None:
    """Ended before the decision, it starts over; decided and committed, it is only finished."""
    path = write_job(tmp_path)
    ends = patch.object(Journal, step, autospec=True, side_effect=Fatal("the driver ends here"))
    with ends as reached, pytest.raises(Fatal, match="ends here"):
        Job.from_toml(path).write(_rows(spark, 0), run="r")
    assert reached.called
    decided = step == "keep"
    assert bool(in_lake(tmp_path)) == decided
    assert Job.from_toml(path).write(_rows(spark, 0), run="r").already_done == decided
    assert in_lake(tmp_path) == in_table(tmp_path) == Counter(range(300))
    history = JobHistory.of(Job.from_toml(path).config, "r")
    assert history.journal(lambda _: None).read().last_generation == 2
    [marks] = (tmp_path / "lake" / "_exactsink").iterdir()
    assert sorted(path.suffix for path in marks.iterdir() if path.name != "birth") == [".done", ".manifest"]


def test_retryable_is_tried_again_with_a_new_claim(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_job(tmp_path)
    monkeypatch.setattr("exactsink.spark.batch.backoff", lambda attempt: None)
    real, failed = OnePass.write, []

    def away_once(self: OnePass, *args: object) -> object:
        if not failed:
            failed.append(1)
            raise Retryable("a store was away for a moment")
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(OnePass, "write", away_once)
    assert not Job.from_toml(path).write(_rows(spark, 0), run="r").already_done
    assert failed
    assert in_lake(tmp_path) == in_table(tmp_path) == Counter(range(300))


@pytest.mark.parametrize("within", ["0", "60"])
def test_a_run_that_is_asked_to_stop_ends_in_time_or_is_given_up_and_a_later_call_writes_it(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], within: str
) -> None:
    path, go, started = write_job(tmp_path), tmp_path / "go", tmp_path / "started"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        started.touch()
        parent = os.getppid()
        while not go.exists() and os.getppid() == parent:  # pyspark's daemon
            time.sleep(0.02)

    frame = _rows(spark, 0)

    def let_go(event: Event) -> None:
        if event.name == "stop_asked" and within != "0":
            go.touch()

    job = Job.from_toml(path, [let_go])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(job.write, frame.mapInArrow(wait, frame.schema), run="r")
        wait_until(lambda: started.exists() or writing.done(), "a task")
        assert main(["stop", str(path), "--run", "r", "--within", within]) == 0
        said = capsys.readouterr().out
        if within == "0":
            with pytest.raises(Retryable, match="batch run r was stopped: exactsink stop by "):
                writing.result()
            assert "stopped: " in said
            assert "no epoch is complete" in said
            assert in_lake(tmp_path) == Counter()
        assert job.write(frame, run="r").already_done == (within != "0")
    assert in_lake(tmp_path) == in_table(tmp_path) == Counter(range(300))
    assert main(["stop", str(path), "--run", "r"]) == 0
    assert "nothing to stop" in capsys.readouterr().out
    assert main(["stop", str(path), "--run", "other"]) == 2


def test_what_is_no_batch_run_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    job = Job.from_toml(write_job(tmp_path))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="takes a batch frame"):
        job.write(stream, run="r")
    with pytest.raises(ConfigError, match="needs a name"):
        job.write(_rows(spark, 0), run="")
    long = tmp_path / "long.toml"
    long.write_text((tmp_path / "job.toml").read_text().replace('name = "e2e"', f'name = "{"n" * 30}"'))
    with pytest.raises(ConfigError, match="too long for batch runs"):
        Job.from_toml(long).write(_rows(spark, 0), run="r")


def test_sink_whose_rows_are_guarded_by_epoch_takes_no_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job.from_toml(write_job(tmp_path))
    traits = replace(job.sinks["table"].backend.traits, needs_epoch_order=True)
    monkeypatch.setattr(UpsertBackend, "traits", traits)
    with pytest.raises(PreflightError, match="takes no batch runs"):
        job.write(_rows(spark, 0), run="r")
    assert not (tmp_path / "lake").exists()


def test_journal_in_a_database(spark: SparkSession, tmp_path: Path) -> None:
    """The stream's and each run's history stand in one table, apart from each other."""
    write_source(tmp_path, 2)
    job = Job.from_toml(write_job(tmp_path, job=f'journal = "sqlite:///{tmp_path}/journal.db"\n'))
    supervise(job, lambda: read_source(job.config, spark))
    assert not job.write(_rows(spark, 5000), run="r").already_done
    assert job.write(_rows(spark, 9000), run="r").already_done
    write_source(tmp_path, 3)
    supervise(job, lambda: read_source(job.config, spark))
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(3) + Counter(range(5000, 5300))
    assert not (tmp_path / "checkpoint.exactsink" / "journal").exists()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        names = [name for (name,) in connection.execute("SELECT DISTINCT job FROM exactsink_journal ORDER BY job")]
    assert names == ["e2e", JobHistory.of(job.config, "r").job]
    with closing(job.journal()) as journal:
        assert journal.read().last_generation == 2
