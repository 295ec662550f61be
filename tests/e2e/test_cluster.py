"""Executors as processes, killed in the middle of a write, and of a vote."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e import slow_tasks
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import SPARK, TWO_FILES, write_job, write_source
from tests.e2e.kafka_job import AS_THEY_COME, KafkaSink
from tests.e2e.postgres_job import Database, gate_of


@pytest.mark.proof
def test_executor_killed_in_the_middle_of_its_write_and_another_when_its_first_sink_has_voted(
    tmp_path: Path, drivers: Drivers, database: Database, kafka_sink: KafkaSink
) -> None:
    write_source(tmp_path, 6)
    spark = SPARK.replace("local[2]", "local-cluster[2,1,1024]") + slow_tasks.CONF % ("hold", "0,1")
    sinks = kafka_sink.sink(AS_THEY_COME) + database.sinks()
    with gate_of(database) as gate:
        driver = drivers.start(write_job(tmp_path, sinks, slow_tasks.TRANSFORM, TWO_FILES, spark))
        marks = [slow_tasks.mark(tmp_path, partition) for partition in (0, 1)]
        driver.until(lambda: all(mark.exists() for mark in marks), "two tasks in the middle of their writes")
        victim, other = (slow_tasks.acting(tmp_path, partition) for partition in (0, 1))
        assert victim.jvm != other.jvm
        orphans = kafka_sink.open
        assert len(orphans) == 2
        gate.shut()
        _kill(victim.jvm)
        (tmp_path / "go").touch()

        driver.until(lambda: gate.waiting > 0, "a task in its pre_commit")
        assert set(orphans) <= set(kafka_sink.open), (
            "nobody ends a dead task's transaction before the epoch is committed"
        )
        _kill(other.jvm)
        gate.open()
        assert driver.exit_code() == 0, driver.reported
    assert not victim.has_won(tmp_path)
    assert not other.has_won(tmp_path)
    assert database.amiss(tmp_path) == {}
    assert kafka_sink.amiss(tmp_path) == {}


def _kill(executor: int) -> None:
    assert b"CoarseGrainedExecutorBackend" in Path("/proc", str(executor), "cmdline").read_bytes()
    os.kill(executor, signal.SIGKILL)
