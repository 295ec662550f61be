"""A target whose disk fills up in the middle of a job: the job stops and says why; room made, it goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.contract import Retryable
from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import THREE_SINKS, leftovers, write_job, write_source, wrong_rows
from tests.e2e.small_disk import SmallDisk
from tests.e2e.warm_jvm import WarmJvm


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not SmallDisk.is_possible():
        pytest.skip("mounting a small disk needs root, or a kernel that lets users have mount namespaces")
    with closing(SmallDisk(tmp_path / "disk", 4, tmp_path / "disk.log")) as mounted:
        yield mounted


@pytest.fixture
def jvm_there(disk: SmallDisk, tmp_path: Path) -> Iterator[WarmJvm]:
    """A JVM whose tasks see the small disk."""
    with closing(WarmJvm(tmp_path / "jvm", disk.within)) as started:
        yield started


@pytest.mark.proof
def test_disk_full_before_the_decision_and_after_it(
    tmp_path: Path, disk: SmallDisk, jvm_there: WarmJvm, drivers: Drivers
) -> None:
    write_source(tmp_path, 4)
    sinks = THREE_SINKS
    for place in ("lake", "lines", "table.db"):
        sinks = sinks.replace("{folder}/" + place, "{folder}/disk/" + place)
    job = write_job(tmp_path, sinks, "restarts = 0\n")
    filler = disk.place / "filler"

    for point, epoch, reason in [("open_epoch", 1, "No space left on device"), ("decide", 2, "its disk has room")]:
        fault = Fault(point, "after", epoch=epoch)
        code, reported = drivers.run(job, fault, fill=filler, jvm=jvm_there, within=disk.within)
        assert code == Retryable.exit_code, reported
        assert reason in reported.split("exactsink: ")[-1], reported
        assert not (tmp_path / "checkpoint" / "commits" / str(epoch)).exists()
        (disk.seen / "filler").unlink()

    code, reported = drivers.run(job, jvm=jvm_there, within=disk.within)
    assert code == 0, reported
    seen = shutil.copytree(disk.seen, tmp_path / "seen")  # SQLite would look for the file's real path, out here
    assert wrong_rows(tmp_path, seen) == {}
    assert leftovers(tmp_path, seen) == []
