"""A target whose disk fills up in the middle of a job: the job stops and says why; room made, it goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.contract import Retryable
from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import THREE_SINKS, leftovers, write_job, write_source, wrong_rows
from tests.e2e.processes import ROOT, Process
from tests.e2e.warm_jvm import WarmJvm

_ROOT_USER = os.geteuid() == 0
_UNSHARE = ["unshare", "--mount", *([] if _ROOT_USER else ["--map-root-user"])]


class SmallDisk:
    """A tmpfs of a few megabytes in a mount namespace: only the processes that enter it see it, and it ends with them.

    As root, or in a user namespace too. `within` before a command runs it where the disk is seen.
    """

    def __init__(self, place: Path, megabytes: int, log: Path) -> None:
        self.place = place
        place.mkdir()
        script = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && echo mounted && exec cat'
        self._holder = Process([*_UNSHARE, "sh", "-c", script, str(place)], log)
        try:
            self._holder.until(lambda: "mounted" in self._holder.reported, "a mounted disk")
        except BaseException:
            self._holder.end()
            raise

    @staticmethod
    def is_possible() -> bool:
        """Return whether this user may mount one at all."""
        tried = [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]  # in a namespace of its own, gone at once
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0

    @property
    def within(self) -> Sequence[str]:
        user = [] if _ROOT_USER else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self._holder.pid}", "--mount", *user, "env", f"--chdir={ROOT}"]

    @property
    def seen(self) -> Path:
        """The disk's folder as these tests see it, from outside."""
        return Path("/proc", str(self._holder.pid), "root", *self.place.absolute().parts[1:])

    def close(self) -> None:
        self._holder.end()


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
