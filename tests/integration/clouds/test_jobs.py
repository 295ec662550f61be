"""Spark jobs with files and staged rows in a cloud's emulator, and their checkpoint on a disk: killed at each point."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exactsink.contract import AlreadyCommitted, Committed, Fatal, Retryable
from exactsink.testing import Fault
from exactsink_files.snapshots import snapshot
from tests.e2e.drivers import KILLED, Drivers
from tests.e2e.jobs import PARTICIPANTS, SPARK, THREE_SINKS, TWO_FILES, leftovers, write_job, write_source, wrong_rows
from tests.e2e.processes import ENVIRONMENT
from tests.e2e.warm_jvm import WarmJvm
from tests.integration.clouds.cloud import AZURE, GCS, HDFS, Cloud, Kind
from tests.servers import azurite
from tests.servers.azurite import own_azurite
from tests.servers.fake_gcs import own_fake_gcs
from tests.servers.hdfs import own_hdfs
from tests.servers.kafka_jars import JarSet
from tests.servers.s3_rules import SlowDown, Trap
from tests.servers.s3a_jars import s3a_jars
from tests.unit.files_sink import EPOCH
from tests.unit.journals import DRIVER, QUERY, Driver, decided

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]

_OWN = {"azure": (AZURE, own_azurite), "gcs": (GCS, own_fake_gcs), "hdfs": (HDFS, own_hdfs)}
_OWN |= {"gcs-on-disk": (GCS, partial(own_fake_gcs, "filesystem"))}
_GCS = JarSet("gcs-2.2.26", ("com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26:shaded",), alone=True)
_PAGE = Path(__file__).parents[3] / "docs/how-to/object-stores.md"
_STARTS = ("claim", "recommit", "sweep")
_AFTER = ("decide", "commit:lake", "commit:lines", "commit:table", "complete", "return")
_PREFLIGHT = r"^(?!DELETE).*_exactsink((%2F|/)try|-probe)-"
_KILLS = [("open_epoch", "after"), ("vote", "after"), ("decide", "before"), *((point, "after") for point in _AFTER)]


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, Any]]:
    kind, own = _OWN[request.param]
    with own() as server:
        yield kind, server


def written(
    folder: Path, jvm: WarmJvm, cloud: Cloud, epochs: int, spark: str = "", checkpoint: str = ""
) -> tuple[Path, Mapping[str, Any]]:
    """Write a job of so many epochs, and their source; return it, and how its drivers are run."""
    write_source(folder, epochs * PARTICIPANTS)
    way: Mapping[str, str] = cloud.kind.server(cloud.direct.folder, cloud.proxy.port).environment
    spark = SPARK + spark + "".join(f'"spark.executorEnv.{name}" = "{value}"\n' for name, value in way.items())
    there = THREE_SINKS.replace("{folder}/l", f"{cloud.url}/l")
    staging = f'staging = "{cloud.url}/checkpoint.exactsink/staging"\n'
    job = write_job(folder, there, staging, TWO_FILES, spark, checkpoint)
    return job, {"jvm": jvm, "environment": way}


def amiss(folder: Path, cloud: Cloud) -> tuple[Mapping[str, Any], list[str]]:
    """Compare every row of every sink with the source; list what is left behind."""
    for name in (name for name in cloud.names() if name.partition("/")[0] != "checkpoint"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((cloud.aside / name).read_bytes())
    return wrong_rows(folder, {}), leftovers(folder)


@pytest.mark.parametrize("emulator", ["azure", "gcs", "hdfs"], indirect=True)
def test_a_job_is_killed_at_each_point_and_answers_are_lost_both_ways(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, cloud: Cloud
) -> None:
    job, how = written(tmp_path, jvm, cloud, len(_KILLS) + 2)
    cuts = []
    for epoch, (point, edge) in enumerate(_KILLS):
        pattern = cloud.kind.part if epoch % 4 > 1 else cloud.kind.complete
        cuts.append(cloud.set(Trap(pattern, done=epoch % 2 == 0)))
        drivers.killed(job, Fault(point, edge, "kill", epoch), **how)  # type: ignore[arg-type]
        for start in _STARTS if (point, edge) == ("decide", "after") else ():
            drivers.killed(job, Fault(start, "after", "kill"), **how)
    (once := tmp_path / "once.toml").write_text(job.read_text().replace("[job]\n", "[job]\nrestarts = 0\n"))
    for where in (rf"(?=.*\.e\d+\.p){cloud.kind.complete}", _PREFLIGHT):
        slow = cloud.set(SlowDown(where, 1000))
        assert drivers.run(once, **how)[0] == Retryable.exit_code, "more of them than repeats get past"
        cloud.proxy.rules.remove(slow)
    ended = cloud.end_credentials(rf"(?!.*staging)(?=.*\.e{len(_KILLS) + 1}\.p){cloud.kind.complete}")
    code, reported = drivers.run(job, **how)
    cloud.proxy.rules.remove(ended)
    why = rf"can't be written: \S+{cloud.url.partition(':')[2]}.*\n  next: .*right to read.*"
    assert (code, bool(re.search(why, reported)), "restarted" in reported) == (Fatal.exit_code, True, False), reported
    cloud.set(SlowDown(cloud.kind.complete, 2))
    drivers.whole(job, **how)
    assert (amiss(tmp_path, cloud), [cut for cut in cuts if not cut.sprung.is_set()]) == (({}, []), [])


@pytest.mark.parametrize("emulator", ["azure", "gcs-on-disk", "hdfs"], indirect=True)
def test_a_store_is_killed_between_the_vote_and_the_commit(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, cloud: Cloud
) -> None:
    job, how = written(tmp_path, jvm, cloud, 3)
    driver = drivers.start(job, Fault("decide", "after", "stall", 1), **how)
    driver.stopped()
    cloud.direct.crash()
    driver.send(signal.SIGCONT)
    driver.until(lambda: "commit_retried job=e2e epoch=1" in driver.reported, "a commit without a store")
    cloud.direct.start()
    assert driver.exit_code() == 0, driver.reported
    assert amiss(tmp_path, cloud) == ({}, [])


@pytest.mark.parametrize("emulator", ["azure", "hdfs"], indirect=True)
def test_a_server_that_is_killed_or_gets_another_key_between_vote_and_commit_loses_nothing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azurite.AzuriteServer, "_crash", signal.SIGTERM)  # killed, it forgets a new container
    journal, (sink, voted) = Driver(cloud.entries), cloud.two_files(participants=2)
    journal.claim(QUERY, DRIVER)
    journal.decide(decided(0))
    cloud.direct.crash()
    with pytest.raises(Retryable, match="can't be written"):
        sink.commit_marked(EPOCH, voted)
    if cloud.kind is AZURE:
        with monkeypatch.context() as another, pytest.raises(Fatal, match=r"can't be written: .*AuthorizationFailure"):
            another.setattr(azurite, "_KEY", "YW5vdGhlcg==")
            cloud.direct.start()
            sink.commit_marked(EPOCH, voted)
        cloud.direct.crash()
    cloud.direct.start()
    assert Driver(cloud.entries).read().next_epoch == 1
    assert sink.commit_marked(EPOCH, voted) == [Committed()] * 2
    assert sink.commit_marked(EPOCH, voted) == [AlreadyCommitted()] * 2
    assert (snapshot(cloud.url).rows, sink.listed()) == (4, [])


_RUN = """
import os, sys
from pyspark.sql import SparkSession
from exactsink import Job

die = lambda event: (event.name, event.edge) == (sys.argv[2], "after") and os.kill(os.getpid(), 9)
job = Job.from_toml(sys.argv[1], [die])
spark = SparkSession.builder.master("local[2]").config(map=job.config.spark.conf).getOrCreate()
print(job.write(spark.read.schema(job.config.source.schema_).json(job.config.source.path), run="day"))
"""


@pytest.mark.parametrize("emulator", ["azure", "gcs", "hdfs"], indirect=True)
def test_a_batch_run_with_its_journal_there_is_finished_after_its_program_is_killed(
    tmp_path: Path, jvm: WarmJvm, cloud: Cloud
) -> None:
    job, _ = written(tmp_path, jvm, cloud, 1, checkpoint=f"{cloud.url}/checkpoint")
    for point, code in (("vote", KILLED), ("decide", KILLED), ("", 0)):
        command = [sys.executable, "-c", _RUN, str(job), point]
        ran = subprocess.run(command, env={**os.environ, **ENVIRONMENT, **jvm.address}, capture_output=True, text=True)
        jvm.settle()
        assert ran.returncode == code, ran.stderr
    assert "already_done=True" in ran.stdout
    assert any(name.startswith("checkpoint.exactsink/runs/") for name in cloud.names())
    assert amiss(tmp_path, cloud) == ({}, [])


@pytest.mark.parametrize("emulator", ["gcs"], indirect=True)
def test_a_checkpoint_by_googles_connector_outlives_its_driver(tmp_path: Path, drivers: Drivers, cloud: Cloud) -> None:
    conf = "".join(line for line in _PAGE.read_text().splitlines(True) if line.startswith('"spark.hadoop.fs.'))
    for name, value in (("auth.service.account.enable", "false"), ("auth.null.enable", "true")):
        conf += f'"spark.hadoop.fs.gs.{name}" = {value}\n'
    conf += f'"spark.hadoop.fs.gs.storage.root.url" = "http://127.0.0.1:{cloud.direct.port}/"\n'
    with closing(WarmJvm(tmp_path / "jvm", "--jars", s3a_jars(_GCS))) as jvm:
        job, how = written(tmp_path, jvm, cloud, 3, conf, f"{cloud.url}/checkpoint")
        drivers.killed(job, Fault("decide", "after", "kill", 1), **how)
        assert {"checkpoint/offsets/1", "checkpoint/commits/0"} <= set(cloud.names())
        drivers.whole(job, **how)
    assert amiss(tmp_path, cloud) == ({}, [])
    assert "checkpoint/commits/2" in cloud.names()
