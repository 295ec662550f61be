"""Spark Connect, on a server of its own: batch runs are exactly once there, streams are refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.drivers import KILLED
from tests.e2e.jobs import PARTICIPANTS, SINKS, ids, in_lake, in_table, write_job
from tests.e2e.processes import Process
from tests.e2e.warm_jvm import SPARK_HOME

pytestmark = pytest.mark.proof

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = re.compile(r"Spark Connect server started at: (\S+:\d+)")
_CONF = ("spark.connect.grpc.binding.address=127.0.0.1", "spark.connect.grpc.binding.port=0", "spark.ui.enabled=false")


class Server:
    """A Connect server; `run` starts a client, and returns its exit code and what it printed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings = [part for setting in (*_CONF, f"spark.local.dir={folder}") for part in ("--conf", setting)]
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", _SERVER, "--master", "local[2]", *settings]
        self._process = Process([*command, "spark-internal"], folder / "server.log")
        self._clients = 0
        try:
            self._process.until(lambda: bool(_STARTED.search(self._process.reported)), "reporting its address")
        except BaseException:
            self.close()
            raise
        self._address = f"sc://{_STARTED.findall(self._process.reported)[0]}"

    def run(self, *arguments: str) -> tuple[int, str]:
        self._clients += 1
        command = [sys.executable, "-m", "tests.e2e.connect_client", self._address, *arguments]
        client = Process(command, self._folder / f"client-{self._clients}.log")
        try:
            return client.exit_code(), client.reported
        finally:
            client.end()

    def close(self) -> None:
        self._process.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with closing(Server(tmp_path_factory.mktemp("connect"))) as started:
        yield started


def test_a_batch_run_is_written_once_whenever_its_client_is_killed_and_streams_are_refused(
    server: Server, tmp_path: Path
) -> None:
    job = write_job(tmp_path, SINKS, source="")
    code, said = server.run(str(job), "stop")
    assert (code, "stopped: batch run day was stopped: exactsink stop by " in said) == (0, True), said
    for point, rows in (("open_epoch", 0), ("vote", 0), ("decide", 0), ("commit:lake", PARTICIPANTS)):
        code, said = server.run(str(job), point)
        assert code == KILLED, said
        assert in_lake(tmp_path) == ids(rows), point
    code, said = server.run(str(job), "")
    assert code == 0, said
    assert "already_done=True, rows={'lake': 1000, 'table': 1000}" in said
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(PARTICIPANTS)
    code, said = server.run(str(job), "")
    assert (code, "already_done=True" in said) == (0, True), said
    refused = said.split("refused: ")[1:]
    assert ["knows neither the query nor its run" in each for each in refused] == [True] * 3
    assert not (tmp_path / "checkpoint.exactsink" / "journal").exists(), "a stream has claimed"


def test_a_route_has_its_frames_from_one_computation(server: Server, tmp_path: Path) -> None:
    job = write_job(tmp_path, SINKS, 'route = "tests.e2e.connect_client:to_both"\n', source="")
    code, said = server.run(str(job), "")
    assert code == 0, said
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(PARTICIPANTS)
