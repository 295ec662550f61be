"""A second driver is started while the first stands still; the first wakes up, and must not write any more."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from exactsink.contract import Fenced
from exactsink.testing import Fault
from tests.e2e import slow_tasks
from tests.e2e.jobs import SPARK, write_job, write_source
from tests.e2e.kafka_flow import Flow
from tests.e2e.lives import Life, Lives
from tests.e2e.postgres_job import Database
from tests.e2e.rows import LINES
from tests.e2e.warm_jvm import WarmJvm

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.postgres_fixtures", "tests.e2e.kafka_fixtures"]


@pytest.mark.parametrize(
    ("point", "edge"),
    [("decide", "before"), ("decide", "after")],
    ids=["before-its-decision", "decided-before-its-commits"],
)
def test_stalled_driver_wakes_fenced_and_writes_nothing(
    tmp_path: Path,
    lives: Lives,
    jvm: WarmJvm,
    other_jvm: WarmJvm,
    database: Database,
    flow: Flow,
    point: str,
    edge: str,
) -> None:
    write_source(tmp_path, 3)
    job = write_job(tmp_path, flow.rows_sink() + database.sinks() + LINES)
    stalled = lives.start(job, Fault(point, edge, "stall", 1), jvm=jvm)  # type: ignore[arg-type]
    stalled.stopped()
    assert not stalled.unfired
    before = _taken_over(job, lives, other_jvm, database, flow)

    stalled.send(signal.SIGCONT)
    _fenced(stalled, job, database, flow, before)
    assert "decide after job=e2e epoch=0" in stalled.reported
    assert ("decide after job=e2e epoch=1" in stalled.reported) == (edge == "after"), "what is fenced can't decide"


def test_stalled_driver_whose_tasks_write_on_wakes_fenced_and_writes_nothing(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, other_jvm: WarmJvm, database: Database, flow: Flow
) -> None:
    write_source(tmp_path, 3)
    sinks = flow.rows_sink() + database.sinks() + LINES
    job = write_job(tmp_path, sinks, slow_tasks.TRANSFORM, spark=SPARK + slow_tasks.CONF % ("hold", "0"))
    stalled = lives.start(job, jvm=jvm)
    stalled.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
    stalled.send(signal.SIGSTOP)
    stalled.stopped()
    before = _taken_over(job, lives, other_jvm, database, flow)

    (tmp_path / "go").touch()
    jvm.wait_idle()
    stalled.send(signal.SIGCONT)
    _fenced(stalled, job, database, flow, before)


def _taken_over(job: Path, lives: Lives, jvm: WarmJvm, database: Database, flow: Flow) -> Mapping[str, object]:
    """Run another driver to the end; give what stands then."""
    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert database.amiss(job.parent, lines=True) == {}
    assert flow.amiss_rows(job.parent) == {}
    return _standing(job.parent, database, flow)


def _fenced(woken: Life, job: Path, database: Database, flow: Flow, before: Mapping[str, object]) -> None:
    assert woken.exit_code() == Fenced.exit_code, woken.reported
    assert "has claimed the job" in woken.reported
    assert _standing(job.parent, database, flow) == before, "the woken driver wrote something"
    assert database.amiss(job.parent, lines=True) == {}
    assert flow.amiss_rows(job.parent) == {}


def _standing(folder: Path, database: Database, flow: Flow) -> Mapping[str, object]:
    """Every file of the targets, the journal and the staged rows, with its inode and the time of its last change; and
    every row version in the database; and every record of the topic, with what last became of each transactional id.
    """
    places = [
        folder / name for name in ("lake", "lines", "checkpoint.exactsink/journal", "checkpoint.exactsink/staging")
    ]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    stats = {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in [*files, folder / "table.db"]}
    return {**stats, **database.trace(), **flow.trace()}
