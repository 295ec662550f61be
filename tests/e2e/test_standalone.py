"""Spark's standalone cluster, all data in a bucket: an executor that was suspended, and tasks that die."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from exactsink.cli import submit
from exactsink.testing import Fault
from tests.e2e.drivers import KILLED, Drivers
from tests.e2e.jobs import PARTICIPANTS, write_source
from tests.e2e.processes import ROOT, Process
from tests.e2e.s3_job import Bucket, own_bucket
from tests.e2e.standalone import COME_AND_GO, EPOCH, SPREAD, TASKS, WATCHED, executors, is_alive, standalone, stop
from tests.e2e.warm_jvm import SPARK_HOME, WarmJvm
from tests.integration.clouds.cloud import Counted
from tests.servers.s3_rules import Trap
from tests.servers.s3a_jars import s3a_jars
from tests.servers.waiting import wait_until

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
    """In the last epoch nothing is killed: idle executors have ended, and a task that is slow gets a second attempt."""
    last = 2
    write_source(tmp_path / "job", (last + 1) * PARTICIPANTS)
    sent = bucket.proxy.set(Counted()).sent
    slow = Trap(rf"^POST .*\.e{last}\.p0\.a.*uploads", before=lambda: wait_until(lambda: len(tries()) > 1, "a second"))
    bucket.proxy.set(slow)

    def tries() -> set[str]:
        return set(re.findall(rf"\.e{last}\.p0\.a(\d+)\.\S*uploads", "\n".join(sent)))

    with standalone(tmp_path / "cluster", tmp_path / "job", cores=2) as cluster:
        job = bucket.job_on(cluster.master, SPREAD, {**cluster.conf, **COME_AND_GO})
        driver = drivers.start(job, Fault("complete", "after", "stall", last - 1), jvm=jvm, **bucket.how)
        killed = set[int]()
        for worker in (*cluster.workers, *cluster.workers):
            driver.until(lambda: len(bucket.uploads()) > 100, "uploads of an epoch")
            driver.until(lambda worker=worker: set(executors(worker)) - killed != set(), "another executor")  # type: ignore[misc]
            victim = min(set(executors(worker)) - killed)
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        driver.stopped()
        for worker in cluster.workers:
            worker.until(lambda worker=worker: executors(worker) == [], "the end of its idle executors")  # type: ignore[misc]
        driver.send(signal.SIGCONT)
        assert driver.exit_code() == 0, driver.reported
    assert slow.sprung.is_set()
    assert bucket.amiss() == {}
    journal = [json.loads(path.read_text()) for path in (tmp_path / "job/checkpoint.exactsink/journal").glob("*.json")]
    decided = [sink for record in journal if record["kind"] == "decide" for sink in record["sinks"].values()]
    assert {len(sink["committables"]) for sink in decided} == {TASKS}


def test_spark_submit_in_client_mode_is_killed_twice_as_a_service(tmp_path: Path, bucket: Bucket) -> None:
    """Its JVM in a write, then its Python in the next epoch's commit. The unit file says what is started again."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "examples/deploy/exactsink@.service").read_text(), re.MULTILINE))
    assert (unit["Restart"], unit["KillMode"]) == ("on-failure", "mixed")
    ends = {0, *map(int, unit["RestartPreventExitStatus"].split())}
    write_source(tmp_path / "job", 3 * PARTICIPANTS)
    script, codes = str(Path(submit.__file__)), list[int]()

    def in_python() -> int:
        return next(pid for pid in run.members() if pid != run.pid and is_alive(pid, script))

    bucket.proxy.set(Trap(r"^PUT .*\.e0\.p.*partNumber", before=lambda: os.kill(run.pid, signal.SIGKILL)))
    bucket.proxy.set(Trap(r"^POST .*\.e1\.p.*uploadId=", before=lambda: os.kill(in_python(), signal.SIGKILL)))
    with standalone(tmp_path / "cluster", tmp_path / "job") as cluster, ExitStack() as stack:
        job = bucket.job_on(cluster.master, "", cluster.conf)
        job.write_text(job.read_text().replace(f'master = "{cluster.master}"\n', ""))
        how = ("--deploy-mode", "client", "--master", cluster.master, "--jars", s3a_jars(), script, "run", str(job))
        while not ends & {*codes[-1:]}:
            log = tmp_path / f"run-{len(codes)}" / "log"
            run = Process([str(SPARK_HOME / "bin/spark-submit"), *how], log, bucket.proxy.environment)
            stack.callback(run.end)
            codes.append(run.exit_code())
            run.end()  # as KillMode says
    assert codes == [KILLED, 128 - KILLED, 0], run.reported
    assert bucket.amiss() == {}
