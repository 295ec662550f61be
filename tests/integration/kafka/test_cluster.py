"""Three brokers, of which one after the other is killed while drivers are: every row once, and no error but a retry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from exactsink.contract import Retryable
from exactsink.testing import Fault
from exactsink.testing.processes import KILLED, stopped_or_ended, wake
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.wire import Wire
from tests.integration.kafka.cluster_driver import ROWS_AN_EPOCH, mark_of
from tests.servers.kafka import KafkaServer
from tests.servers.kafka_cluster import COPIES, KafkaCluster, own_cluster

_ROOT = Path(__file__).parents[3]
_POINTS = ("open_epoch", "vote", "decide", "commit:out", "complete", "return")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with own_cluster() as made:
        yield made


class Job:
    """A job's one sink, and its driver's runs, started again as an orchestrator would."""

    def __init__(self, cluster: KafkaCluster, folder: Path, epochs: int, faults: list[Fault]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.topic = cluster.new_topic("cluster", 3, copies=COPIES)
        self.name = f"job-{uuid.uuid4().hex[:12]}"
        self.epochs = epochs
        options = {"bootstrap_servers": cluster.bootstrap, "topic": self.topic, "transaction_timeout_seconds": 120}
        self.options = KafkaOptions.model_validate(options)
        job = {"job": self.name, "epochs": epochs, "options": options, "faults": list(map(asdict, faults))}
        (folder / "job.json").write_text(json.dumps(job))
        self.retried = 0
        self._started: list[int] = []

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> int:
        """Start a driver; return its process id."""
        command = [sys.executable, "-m", "tests.integration.kafka.cluster_driver", str(self.folder)]
        with open(self.folder / "log", "ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, cwd=_ROOT, start_new_session=True)
        self._started.append(driver.pid)
        return driver.pid

    def end(self) -> None:
        """End what a failed test leaves: drivers, and their participants, which are of their groups."""
        for driver in self._started:
            with suppress(ProcessLookupError):
                os.killpg(driver, signal.SIGKILL)

    def follow(self, driver: int) -> tuple[int, int | None]:
        """Wait until a driver, or one that follows because a retry can help, stands still or ends: its id and code."""
        while (code := stopped_or_ended(driver)) == Retryable.exit_code:
            self.retried += 1
            driver = self.start()
        return driver, code

    def amiss(self) -> dict[str, Any]:
        """Return what is not as it must be once all epochs are done."""
        seen = Counter(int(record.value or b"-1") for record in self.cluster.rows(self.topic))
        wanted = Counter(range(self.epochs * ROWS_AN_EPOCH))
        with closing(Wire(self.options, "test")) as wire:
            left = wire.ongoing(f"{self.name}.")
        raw = [line for line in self.log.splitlines() if "Traceback" in line or "Error:" in line]
        found = {"lost": wanted - seen, "doubled": seen - wanted, "open": left, "raw": raw}
        return {what: value for what, value in found.items() if value} | (
            {"held": True} if self.cluster.held(self.topic) else {}
        )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [1, pytest.param(14, marks=pytest.mark.proof)])
def test_brokers_are_killed_while_drivers_are(
    cluster: KafkaCluster, tmp_path: Path, request: pytest.FixtureRequest, rounds: int
) -> None:
    """Each driver dies while a broker is gone; the next one starts while that broker comes back."""
    pairs = [
        (_at(number, "stall", 2 + 4 * number), _at(number + 3, "kill", 3 + 4 * number)) for number in range(rounds)
    ]
    job = Job(cluster, tmp_path, 4 * rounds + 4, [fault for pair in pairs for fault in pair])
    request.addfinalizer(job.end)
    leads = ("__consumer_offsets", job.topic, "__transaction_state")
    for number, (stall, kill) in enumerate(pairs):
        _killed_together(job, stall, kill, leads[number % len(leads)]).launch()
    assert job.follow(job.start())[1] == 0, job.log
    assert job.amiss() == {}, job.log
    print(f"{job.retried} drivers ended with 75")


def _at(number: int, action: Any, epoch: int) -> Fault:
    """Return a fault at one of the points in turn."""
    turn, point = divmod(number, len(_POINTS))
    return Fault(_POINTS[point], "before" if (turn + point) % 2 else "after", action, epoch)


def _killed_together(job: Job, stall: Fault, kill: Fault, leads: str) -> KafkaServer:
    """Kill a topic's leader where the driver stands still, and let the driver run into its own end without it."""
    driver, code = job.follow(job.start())
    assert (code, mark_of(job.folder, stall).exists()) == (None, True), job.log
    for one in job.cluster.brokers:
        one.wait_ready()
    job.cluster.wait_whole(job.topic)  # the one that was killed last, too
    broker = job.cluster.leader(leads)
    broker.stop("kill")
    wake(driver)
    driver, code = job.follow(driver)
    assert (code, mark_of(job.folder, kill).exists()) == (KILLED, True), job.log
    return broker
