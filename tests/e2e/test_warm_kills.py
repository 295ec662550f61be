"""One job with all sinks, its driver killed with SIGKILL point after point, its rows compared one by one."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from exactsink.testing import Fault
from tests.e2e import slow_tasks
from tests.e2e.jobs import SPARK, write_job, write_source
from tests.e2e.lives import KILLED, Lives
from tests.e2e.rows import THREE_SINKS, leftovers, wrong_rows
from tests.e2e.warm_jvm import WarmJvm

BATCHES = 3


def _kill(point: str, edge: str, epoch: int | None = 1) -> Fault:
    return Fault(point, edge, "kill", epoch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deaths", "first"),
    [
        pytest.param([_kill("decide", "before")], None, id="voted-not-decided"),
        pytest.param([_kill("decide", "after")], None, id="decided-nothing-committed"),
        pytest.param([_kill("commit:table", "before")], "commit:lines", id="lines-committed-table-not"),
        pytest.param([_kill("commit:lake", "before")], "commit:table", id="table-committed-lake-not"),
        pytest.param([_kill("return", "before")], None, id="complete-before-sparks-commit-log"),
        pytest.param(
            [_kill("decide", "after"), _kill("commit:lines", "after"), _kill("sweep", "before", None)],
            None,
            id="killed-again-in-every-recovery",
        ),
    ],
)
def test_killed_driver_is_followed_by_one_that_loses_and_doubles_nothing(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, deaths: Sequence[Fault], first: str | None
) -> None:
    write_source(tmp_path, BATCHES)
    job = write_job(tmp_path, THREE_SINKS)
    for fault in deaths:
        code, reported = lives.run(job, fault, first=first, jvm=jvm)
        assert code == KILLED, reported
        assert not (tmp_path / "checkpoint" / "commits" / "1").exists(), "Spark has the batch still to do"

    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert wrong_rows(tmp_path) == {}
    assert leftovers(tmp_path) == []


def test_driver_killed_while_its_tasks_write(tmp_path: Path, lives: Lives, jvm: WarmJvm) -> None:
    write_source(tmp_path, BATCHES)
    job = write_job(tmp_path, THREE_SINKS, slow_tasks.TRANSFORM, spark=SPARK + slow_tasks.CONF % ("hold", "0"))
    life = lives.start(job, jvm=jvm)
    life.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
    life.send(signal.SIGKILL)
    assert life.exit_code() == KILLED
    life.end()
    assert leftovers(tmp_path), "the task has begun to write"

    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert wrong_rows(tmp_path) == {}
    assert leftovers(tmp_path) == []


def test_task_killed_in_the_middle_of_its_write_is_tried_again(tmp_path: Path, lives: Lives, jvm: WarmJvm) -> None:
    write_source(tmp_path, BATCHES)
    spark = SPARK.replace("local[2]", "local[2,4]") + slow_tasks.CONF % ("die", "0")
    job = write_job(tmp_path, THREE_SINKS, slow_tasks.TRANSFORM, spark=spark)
    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert not slow_tasks.acting(tmp_path, 0).has_won(tmp_path)
    assert wrong_rows(tmp_path) == {}
    assert leftovers(tmp_path) == []
