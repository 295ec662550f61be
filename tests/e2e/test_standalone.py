"""Spark's standalone cluster, all data in a bucket: an executor that was suspended, and tasks that die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import write_source
from tests.e2e.s3_job import Bucket, own_bucket
from tests.e2e.standalone import COME_AND_GO, EPOCH, SPREAD, WATCHED, executors, is_alive, standalone, stop
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.s3_rules import Trap
from tests.servers.s3a_jars import s3a_jars

pytestmark = pytest.mark.proof


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with own_bucket(tmp_path / "job") as made:
        yield made


@pytest.fixture
def jvm(bucket: Bucket, tmp_path: Path) -> Iterator[WarmJvm]:
    """The driver's JVM, with Spark's S3A connector, and credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.proxy.environment.items():
            patch.setenv(name, value)
        started = WarmJvm(tmp_path / "jvm", "--jars", s3a_jars())
    with closing(started):
        yield started


def test_executor_that_was_suspended_writes_on_after_the_decision(
    tmp_path: Path, drivers: Drivers, bucket: Bucket, jvm: WarmJvm
) -> None:
    write_source(tmp_path / "job", 6)
    under_way, decided = threading.Event(), threading.Event()
    late = Trap(rf"^PUT .*\.e{EPOCH}\.p0\.a.*partNumber", before=lambda: (under_way.set(), decided.wait()))
    bucket.proxy.set(late)
    with standalone(tmp_path / "cluster", tmp_path / "job") as cluster:
        job = bucket.job_on(cluster.master, WATCHED, cluster.conf)
        how = {"jvm": jvm, **bucket.how}
        driver = drivers.start(job, Fault("decide", "after", "stall", EPOCH), **how)
        driver.until(under_way.is_set, "a part on its way")
        worker, first = cluster.first()
        asleep = stop(worker)
        driver.stopped()
        of_it = [(key, upload) for key, upload in bucket.uploads() if f".e{EPOCH}.p0.a{first.id}." in key]
        empty = [upload for upload in of_it if not bucket.parts(upload)]
        assert empty, "the held part has not arrived"
        decided.set()
        for pid in (*asleep, worker.pid):
            os.kill(pid, signal.SIGCONT)
        worker.until(lambda: any(map(bucket.parts, empty)), "a part after the decision")
        worker.until(lambda: not is_alive(first.jvm), "the end of the executor that counts as lost")
        driver.send(signal.SIGCONT)
        assert driver.exit_code() == 0, driver.reported
        drivers.whole(job, **how)
    assert bucket.amiss() == {}


def test_400_tasks_an_epoch_with_speculation_while_executors_come_and_go(
    tmp_path: Path, drivers: Drivers, bucket: Bucket, jvm: WarmJvm
) -> None:
    write_source(tmp_path / "job", 4)
    with standalone(tmp_path / "cluster", tmp_path / "job", cores=2) as cluster:
        job = bucket.job_on(cluster.master, SPREAD, {**cluster.conf, **COME_AND_GO})
        driver = drivers.start(job, jvm=jvm, **bucket.how)
        killed = set[int]()
        for worker in (*cluster.workers, *cluster.workers):
            driver.until(lambda: len(bucket.uploads()) > 100, "uploads of an epoch")
            driver.until(lambda worker=worker: set(executors(worker)) - killed != set(), "another executor")  # type: ignore[misc]
            victim = min(set(executors(worker)) - killed)
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        assert driver.exit_code() == 0, driver.reported
    assert bucket.amiss() == {}
