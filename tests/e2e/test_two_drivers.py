"""A second driver is started while the first stands still; the first wakes up, and must not write any more."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from exactsink.contract import Fenced
from tests.e2e import slow_tasks
from tests.e2e.drivers import Driver, Drivers
from tests.e2e.jobs import SPARK, TABLES, write_job, write_source
from tests.e2e.kafka_job import AS_THEY_COME, KafkaSink
from tests.e2e.postgres_job import Database
from tests.e2e.warm_jvm import WarmJvm


def test_stalled_driver_whose_tasks_write_on_wakes_fenced_and_writes_nothing(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, other_jvm: WarmJvm, database: Database, kafka_sink: KafkaSink
) -> None:
    write_source(tmp_path, 3)
    sinks = kafka_sink.sink(AS_THEY_COME) + TABLES + database.sinks()
    job = write_job(tmp_path, sinks, slow_tasks.TRANSFORM, spark=SPARK + slow_tasks.CONF % ("hold", "0"))
    stalled = drivers.start(job, jvm=jvm)
    stalled.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
    stalled.send(signal.SIGSTOP)
    stalled.stopped()
    before = _taken_over(job, drivers, other_jvm, database, kafka_sink)

    (tmp_path / "go").touch()
    jvm.wait_idle()
    stalled.send(signal.SIGCONT)
    _fenced(stalled, job, database, kafka_sink, before)


def _taken_over(
    job: Path, drivers: Drivers, jvm: WarmJvm, database: Database, kafka_sink: KafkaSink
) -> Mapping[str, object]:
    """Run another driver to its end and return what stands then."""
    code, reported = drivers.run(job, jvm=jvm)
    assert code == 0, reported
    assert database.amiss(job.parent) == {}
    assert kafka_sink.amiss(job.parent) == {}
    return _standing(job.parent, database, kafka_sink)


def _fenced(woken: Driver, job: Path, database: Database, kafka_sink: KafkaSink, before: Mapping[str, object]) -> None:
    assert woken.exit_code() == Fenced.exit_code, woken.reported
    assert "has claimed the job" in woken.reported
    assert _standing(job.parent, database, kafka_sink) == before, "the woken driver wrote something"
    assert database.amiss(job.parent) == {}
    assert kafka_sink.amiss(job.parent) == {}


def _standing(folder: Path, database: Database, kafka_sink: KafkaSink) -> Mapping[str, object]:
    """Every file of the targets, the journal and the staged rows, with its inode and the time of its last change; and
    every row version in the database; and every record of the topic, with what last became of each transactional id.
    """
    names = ("lake", "lines", "delta", "iceberg", "checkpoint.exactsink/journal", "checkpoint.exactsink/staging")
    places = [folder / name for name in names]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    stats = {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in [*files, folder / "table.db"]}
    return {**stats, **database.trace(), **kafka_sink.trace()}
