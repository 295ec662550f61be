"""A Spark job on three brokers: those that lead its topic, or coordinate, are killed; or all become a newer release."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from exactsink.contract import Retryable
from exactsink.testing import Fault
from exactsink_kafka.wire import Wire
from tests.e2e.drivers import KILLED, Driver, Drivers
from tests.e2e.jobs import PARTICIPANTS, TWO_FILES, write_job, write_source
from tests.e2e.kafka_job import AS_THEY_COME, KafkaSink
from tests.e2e.warm_jvm import WarmJvm
from tests.integration.kafka import marked
from tests.servers.kafka_cluster import COPIES, KafkaCluster, own_cluster
from tests.servers.kafka_jars import BROKER, OLDER, OLDEST, TOOLS, VERSION, JarSet, jars, java

_POINTS = ("open_epoch", "vote", "decide", "commit:out", "complete", "return")
_ROUNDS = 12


class Job:
    """A job's one sink, and its driver, started again as an orchestrator would."""

    def __init__(self, drivers: Drivers, jvm: WarmJvm, cluster: KafkaCluster, folder: Path, *faults: Fault) -> None:
        self._start = lambda *left: drivers.start(path, *left, jvm=jvm)
        self._folder = folder
        self.sink = KafkaSink(cluster, cluster.new_topic("output", PARTICIPANTS, copies=COPIES), "out")
        write_source(folder, (len(faults) + 3) * PARTICIPANTS)
        path = write_job(folder, self.sink.sink(AS_THEY_COME), source=TWO_FILES)
        self.driver: Driver = self._start(*faults)

    def again(self) -> None:
        """Start the next driver, with the faults that are left."""
        self.driver.end()
        self.driver = self._start(*self.driver.unfired)

    def follow(self) -> int | None:
        """Wait until the driver ends, or stalls, or a retry of it does; return its exit code."""
        while True:
            seen = os.waitid(os.P_PID, self.driver.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if seen is not None and seen.si_code == os.CLD_STOPPED:
                return None
            if (code := self.driver.exit_code()) != Retryable.exit_code:
                return code
            self.again()

    def end(self) -> None:
        """Follow to the end, and look at all rows."""
        assert (self.follow(), self.driver.unfired) == (0, []), self.driver.reported
        assert self.sink.amiss(self._folder) == {}


def _at(number: int, action: Any, epoch: int) -> Fault:
    """Return a fault at one of the points in turn."""
    turn, point = divmod(number, len(_POINTS))
    return Fault(_POINTS[point], "before" if (turn + point) % 2 else "after", action, epoch)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", [OLDER, BROKER], ids=lambda release: release.name)
def test_the_brokers_that_lead_are_killed_while_drivers_are(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, release: JarSet
) -> None:
    """Each second driver dies while a broker is gone; the next one starts while that broker comes back."""
    faults = [_at(n + 3 * late, ("stall", "kill")[late], 1 + 2 * n + late) for n in range(_ROUNDS) for late in (0, 1)]
    with own_cluster(release=release) as cluster:
        job = Job(drivers, jvm, cluster, tmp_path, *faults)
        for _, leads in zip(range(_ROUNDS), cycle((job.sink.topic, "__consumer_offsets", "__transaction_state"))):
            assert job.follow() is None, job.driver.reported
            for one in cluster.brokers:
                one.wait_ready()
            cluster.wait_whole(job.sink.topic)  # the one that was killed last, too
            broker = cluster.leader(leads)
            broker.stop("kill")
            job.driver.send(signal.SIGCONT)
            assert job.follow() == KILLED, job.driver.reported
            broker.launch()
            job.again()
        job.end()


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", [OLDER, OLDEST], ids=lambda release: release.name)
def test_a_driver_goes_on_while_its_cluster_is_upgraded(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, release: JarSet
) -> None:
    """Broker by broker, then the features. A driver ends transactions as at its start; the next one, in the new way.

    Another job has new drivers at each step, which reach the cluster through each of the brokers.
    """
    stalls = [Fault(point, "after", "stall", 1 + number) for number, point in enumerate(_POINTS[:4])]
    with own_cluster(release=release) as cluster:
        job = Job(drivers, jvm, cluster, tmp_path, *stalls, Fault("decide", "after", "kill", 6))
        site, first = marked.Site(cluster, COPIES, transaction_timeout_seconds=660), job.driver
        others, epochs = marked.Driver(site, tmp_path / "others"), iter(range(len(stalls) * COPIES))
        for number in range(len(stalls)):
            assert (job.follow(), job.driver) == (None, first), job.driver.reported
            if number < COPIES:
                cluster.brokers[number].stop()
                cluster.brokers[number].release = BROKER
                cluster.brokers[number].start()
                cluster.wait_whole(job.sink.topic)
            else:
                tool = [java(), "-cp", f"{jars(TOOLS)}/*", "org.apache.kafka.tools.FeatureCommand"]
                to = ["--bootstrap-server", cluster.bootstrap, "upgrade"]
                to += ["--release-version", VERSION.rpartition(".")[0]]
                subprocess.run([*tool, *to], check=True)
            for broker in cluster.brokers:
                site.options = site.options.model_copy(update={"bootstrap_servers": broker.bootstrap})
                others.run(next(epochs))
                with closing(site.committer()) as committer:
                    assert list(committer.check(marked.SCHEMA, 2)) == []
            first.send(signal.SIGCONT)
        assert (job.follow(), job.driver) == (KILLED, first), job.driver.reported
        job.again()
        job.end()
        assert site.values() == sorted(f"{epoch}".encode() for epoch in range(len(stalls) * COPIES))
        with closing(Wire(site.options, "test")) as wire:
            assert wire.cluster().joins
