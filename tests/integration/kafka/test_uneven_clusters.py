"""Clusters whose brokers, or topics, are not alike: two releases in an upgrade, and fewer copies of the mark."""

from __future__ import annotations

import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from exactsink.contract import Retryable
from exactsink.testing import Fault
from exactsink.testing.processes import KILLED, wake
from exactsink_kafka import committer as committers
from exactsink_kafka.wire import Wire
from tests.integration.kafka.marked import BIRTH, SCHEMA, Driver, Site
from tests.integration.kafka.test_cluster import Job
from tests.servers.kafka_cluster import COPIES, own_cluster
from tests.servers.kafka_jars import BROKER, OLDER, OLDEST, TOOLS, VERSION, JarSet, jars, java


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", [OLDER, OLDEST], ids=lambda release: release.name)
def test_a_driver_goes_on_while_its_cluster_is_upgraded(
    tmp_path: Path, request: pytest.FixtureRequest, release: JarSet
) -> None:
    """Broker by broker, then the features. A driver ends transactions as at its start; the next one, in the new way.

    Another job has new drivers at each step, which reach the cluster through each of the brokers.
    """
    points = ("open_epoch", "vote", "decide", "commit:out")
    stalls = [Fault(point, "after", "stall", 1 + number) for number, point in enumerate(points)]
    with own_cluster(release=release) as cluster:
        job = Job(cluster, tmp_path, 8, [*stalls, Fault("decide", "after", "kill", 6)])
        request.addfinalizer(job.end)
        driver = job.start()
        site = Site(cluster, COPIES, transaction_timeout_seconds=660)
        others, epochs = Driver(site, tmp_path / "others"), iter(range(len(stalls) * COPIES))
        for number in range(len(stalls)):
            assert job.follow(driver) == (driver, None), job.log
            if number < COPIES:
                cluster.brokers[number].stop()
                cluster.brokers[number].release = BROKER
                cluster.brokers[number].start()
                cluster.wait_whole(job.topic)
            else:
                _upgrade_features(cluster.bootstrap)
            for first in cluster.brokers:
                site.options = site.options.model_copy(update={"bootstrap_servers": first.bootstrap})
                others.run(next(epochs))
                with closing(site.committer()) as committer:
                    assert list(committer.check(SCHEMA, 2)) == []
            wake(driver)
        assert job.follow(driver) == (driver, KILLED), job.log
        assert job.follow(job.start())[1] == 0, job.log
        assert job.amiss() == {}, job.log
        assert site.values() == sorted(f"{epoch}".encode() for epoch in range(len(stalls) * COPIES))
        with closing(Wire(job.options, "test")) as wire:
            assert wire.cluster().joins


def _upgrade_features(bootstrap: str) -> None:
    command = [java(), "-cp", f"{jars(TOOLS)}/*", "org.apache.kafka.tools.FeatureCommand"]
    to = ".".join(VERSION.split(".")[:2])
    subprocess.run([*command, "--bootstrap-server", bootstrap, "upgrade", "--release-version", to], check=True)


@pytest.mark.proof
def test_a_mark_with_fewer_copies_than_the_rows_is_found_and_named_once_its_broker_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with own_cluster({"offsets.topic.replication.factor": "1", "min.insync.replicas": "1"}) as cluster:
        site = Site(cluster, COPIES, transaction_timeout_seconds=660)
        for _ in range(2):  # before there is such a topic, and after
            with closing(site.committer()) as committer:
                [found, *_] = [one for one in committer.check(SCHEMA, 2) if "__consumer_offsets" in one.message]
            assert "one copy of its partitions (of 3 brokers): a lost disk can lose the mark" in found.message
            assert site.born() == BIRTH
        assert "kafka-reassign-partitions" in found.fix
        cluster.leader("__consumer_offsets").stop("kill")
        monkeypatch.setattr(committers, "Wire", partial(Wire, patience_seconds=5.0))
        with closing(site.committer()) as committer, pytest.raises(Retryable) as failed:
            committer.mark()
        assert f"COORDINATOR_NOT_AVAILABLE (15) for group exactsink.{site.job}.out" in failed.value.what
        assert "--topic __consumer_offsets --unavailable-partitions" in failed.value.next
