"""A job that has everything on S3, its checkpoint by Spark's own S3A connector; what dies, and what the wire loses."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.contract import Retryable
from exactsink.testing import Fault
from tests.e2e.drivers import Driver, Drivers
from tests.e2e.jobs import PARTICIPANTS, write_source
from tests.e2e.s3_job import Bucket, own_bucket
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.s3 import S3, bucket_on
from tests.servers.s3_rules import COMPLETE, CREATE_UPLOAD, ForgetsUploads, OneByOne, SlowDown, Trap
from tests.servers.s3a_jars import s3a_jars

ONCE = "[job]\nrestarts = 0\n"
UPLOADS = 4 * PARTICIPANTS
"""Of an epoch: a Parquet file of each of three kinds, and one of JSON lines, a participant."""


@pytest.fixture(scope="module")
def s3_jvm(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """A JVM with Spark's S3A connector, and credentials."""
    with bucket_on(s3, "jvm"), closing(WarmJvm(tmp_path_factory.mktemp("s3-jvm"), "--jars", s3a_jars())) as started:
        yield started


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with own_bucket(tmp_path) as made:
        yield made


class Runs:
    """A job of two epochs, and its driver runs."""

    def __init__(self, folder: Path, drivers: Drivers, jvm: WarmJvm, bucket: Bucket) -> None:
        write_source(folder, 2 * PARTICIPANTS)
        self.job = bucket.job()
        self._drivers, self._bucket = drivers, bucket
        self._how = {"jvm": jvm, **bucket.how}

    def killed(self, point: str, edge: str, epoch: int | None = None, first: str | None = None) -> tuple[float, int]:
        """Return how many epochs the lake shows then, and how many uploads stand."""
        fault = Fault(point, edge, "kill", epoch)  # type: ignore[arg-type]
        self._drivers.killed(self.job, fault, first=first, **self._how)
        return self._bucket.epochs(), len(self._bucket.uploads())

    def started(self) -> Driver:
        """Start a driver run."""
        return self._drivers.start(self.job, **self._how)

    def failed(self) -> str:
        """Run a driver that may not try again and ends with a Retryable; return what it printed."""
        (once := self.job.with_name("once.toml")).write_text(self.job.read_text().replace("[job]\n", ONCE))
        environment = {**self._bucket.how["environment"], "AWS_MAX_ATTEMPTS": "1"}  # botocore's take minutes
        code, reported = self._drivers.run(once, **{**self._how, "environment": environment})
        assert code == Retryable.exit_code, reported
        return reported

    def whole(self) -> None:
        """Run to the end: every row of every sink is there once, and nothing is left behind."""
        self._drivers.whole(self.job, **self._how)
        assert self._bucket.amiss() == {}


@pytest.fixture
def runs(tmp_path: Path, drivers: Drivers, s3_jvm: WarmJvm, bucket: Bucket) -> Runs:
    return Runs(tmp_path, drivers, s3_jvm, bucket)


@pytest.mark.proof
def test_killed_around_the_decision_and_in_a_commit_and_answers_of_complete_lost(runs: Runs, bucket: Bucket) -> None:
    """The repeat of a Complete is answered in both known ways: as the first time, and by NoSuchUpload."""
    assert runs.killed("decide", "before", 0) == (0, UPLOADS), "nothing is visible before the decision"
    assert runs.killed("commit:lake", "after", 0, "commit:lines") == (1, 0)
    lost = [bucket.proxy.set(Trap(COMPLETE, nth)) for nth in (1, UPLOADS)]
    repeated = bucket.proxy.set(Trap(COMPLETE, 2, before=lambda: forgets.append(bucket.proxy.set(ForgetsUploads()))))
    forgets: list[ForgetsUploads] = []
    runs.whole()
    assert all(trap.sprung.is_set() for trap in (*lost, repeated, *forgets))


@pytest.mark.proof
def test_server_killed_between_vote_and_commit_and_in_the_commit_of_many_files(
    runs: Runs, bucket: Bucket, tmp_path: Path
) -> None:
    write_source(tmp_path, 2 * PARTICIPANTS, kinds=60)
    epochs, uploads = runs.killed("decide", "after", 0)
    assert (epochs, uploads) == (0, 61 * PARTICIPANTS)
    bucket.server.stop()
    bucket.server.start()
    # Not inside a Complete: versitygw forgets such an upload, which is Unknown (tests/integration/files_s3).
    down = bucket.proxy.set(OneByOne(COMPLETE, uploads // 2, then=bucket.server.stop))
    driver = runs.started()
    driver.until(down.sprung.is_set, "half of the epoch's files completed")
    driver.send(signal.SIGSTOP)
    bucket.server.start()
    assert 0 < bucket.epochs() < 1, "some of the epoch's files are complete, and some are not"
    driver.send(signal.SIGCONT)
    assert driver.exit_code() == 0, driver.reported  # the commit is tried again and again
    assert bucket.amiss() == {}


@pytest.mark.proof
def test_slow_down_in_a_row(runs: Runs, bucket: Bucket) -> None:
    """As many as a client's own repeats get past; and more than those, which ends the driver run and loses nothing."""
    patterns = (COMPLETE, CREATE_UPLOAD, r"^PUT .*partNumber", "^PUT .*/journal/", "^PUT .*/staging/")
    few = [bucket.proxy.set(SlowDown(pattern, 2)) for pattern in patterns]
    runs.killed("return", "before", 0)
    assert [slow.sprung.is_set() for slow in few] == [True] * len(few)
    bucket.proxy.set(SlowDown(rf"(?=.*\.e\d+\.p){COMPLETE}", 10**6))  # the preflight has no epoch
    assert "503" in (reported := runs.failed()) or "SlowDown" in reported
    bucket.proxy.rules.clear()
    runs.whole()
