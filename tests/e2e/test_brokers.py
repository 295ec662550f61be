"""A Spark job on three brokers: those that lead its topic, or coordinate, are killed step after step."""

from __future__ import annotations

import os
import signal
from itertools import cycle
from pathlib import Path

import pytest

from exactsink.contract import Retryable
from exactsink.testing import Fault
from tests.e2e.drivers import Driver, Drivers
from tests.e2e.jobs import PARTICIPANTS, TWO_FILES, write_job, write_source
from tests.e2e.kafka_job import AS_THEY_COME, KafkaSink
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka_cluster import COPIES, own_cluster
from tests.servers.kafka_jars import BROKER, OLDER, JarSet

_STEPS = ["open_epoch", "vote", "decide", "commit:out", "complete", "return"]


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", [OLDER, BROKER], ids=lambda release: release.name)
def test_a_job_goes_on_while_the_brokers_that_lead_are_killed(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, release: JarSet
) -> None:
    with own_cluster(release=release) as cluster:
        sink = KafkaSink(cluster, cluster.new_topic("output", PARTICIPANTS, copies=COPIES), "out")
        faults = [
            Fault(point, edge, "stall", 2 * number + late)  # type: ignore[arg-type]
            for number, point in enumerate(_STEPS)
            for late, edge in enumerate(("before", "after"))
        ]
        write_source(tmp_path, (len(faults) + 2) * PARTICIPANTS)
        job = write_job(tmp_path, sink.sink(AS_THEY_COME), source=TWO_FILES)
        driver, ended = drivers.start(job, *faults, jvm=jvm), 0
        for leads in cycle((sink.topic, "__consumer_offsets", "__transaction_state")):
            while (code := _stopped(driver)) == Retryable.exit_code:
                driver.end()
                faults, ended = driver.unfired, ended + 1
                driver = drivers.start(job, *faults, jvm=jvm)
            if code is not None:
                break
            for one in cluster.brokers:
                one.wait_ready()
            cluster.wait_whole(sink.topic)  # the one that was killed last, too
            broker = cluster.leader(leads)
            broker.stop("kill")
            driver.send(signal.SIGCONT)
            broker.launch()
        assert (code, driver.unfired) == (0, []), driver.reported
        assert sink.amiss(tmp_path) == {}
        print(f"{ended} drivers ended with 75")


def _stopped(driver: Driver) -> int | None:
    """Wait until a driver stands still, then None, or has ended, then its exit code."""
    seen = os.waitid(os.P_PID, driver.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return None if seen is not None and seen.si_code == os.CLD_STOPPED else driver.exit_code()
