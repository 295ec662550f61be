"""A job that has everything on S3, its checkpoint by Spark's own S3A connector; what dies, and what the wire loses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import PARTICIPANTS, in_lake, write_source
from tests.e2e.s3_job import Bucket, own_bucket
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.s3 import S3
from tests.servers.s3_proxy import COMPLETE, ForgetsUploads, SlowDown, Trap
from tests.servers.s3a_jars import s3a_jars


@pytest.fixture(scope="module")
def s3_jvm(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """A JVM with Spark's S3A connector, and credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        started = WarmJvm(tmp_path_factory.mktemp("s3-jvm"), "--jars", s3a_jars())
    with closing(started):
        yield started


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with own_bucket(tmp_path) as made:
        yield made


def test_killed_around_the_decision_and_in_commits(
    tmp_path: Path, drivers: Drivers, s3_jvm: WarmJvm, bucket: Bucket
) -> None:
    write_source(tmp_path, 4 * PARTICIPANTS)
    job = bucket.job()

    def killed(point: str, edge: str, epoch: int | None = None, first: str | None = None) -> tuple[float, int]:
        """Return what the lake shows then, in files' batches, and how many uploads stand."""
        fault = Fault(point, edge, "kill", epoch)  # type: ignore[arg-type]
        drivers.killed(job, fault, first=first, jvm=s3_jvm, **bucket.how)
        return in_lake(tmp_path).total() / 1000, len(bucket.uploads())

    an_epoch = PARTICIPANTS * 4
    assert killed("decide", "before", 0) == (0, an_epoch), "nothing is visible before the decision"
    assert killed("sweep", "after") == (0, 0)
    assert killed("decide", "after", 0) == (0, an_epoch)
    assert killed("commit:lake", "after", 1, "commit:lines") == (2, 0)
    assert killed("return", "before", 2) == (3, 0)
    drivers.whole(job, jvm=s3_jvm, **bucket.how)
    assert bucket.amiss() == {}
