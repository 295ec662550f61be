"""The broker crashes around the commits, and its answers get lost on the way: the job ends well by itself."""

from __future__ import annotations

import signal
from pathlib import Path

from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import PARTICIPANTS, TWO_FILES, write_job, write_source
from tests.e2e.kafka_job import kafka_sink_of
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.cutting_kafka import EndTxnTrap, cutting_kafka
from tests.servers.waiting import wait_until

EPOCHS = 5


def test_broker_that_crashes_before_and_between_the_commits_and_an_answer_that_gets_lost(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm
) -> None:
    write_source(tmp_path, EPOCHS * PARTICIPANTS)
    left: list[int] = []
    with cutting_kafka() as broker:
        sink = kafka_sink_of(broker)

        def crash_after_the_first() -> None:
            wait_until(lambda: len(sink.open) < PARTICIPANTS, "the first commit of two")
            left.append(len(sink.open))
            broker.stop("kill")

        job = write_job(tmp_path, sink.sink(way=broker.way), source=TWO_FILES)
        stalls = [Fault("decide", "after", "stall", epoch) for epoch in (1, 2, 3)]
        driver = drivers.start(job, *stalls, jvm=jvm)

        driver.stopped()
        assert (len(sink.open), sink.held) == (PARTICIPANTS, True)
        broker.stop("kill")
        before = broker.proxy.turned_away
        driver.send(signal.SIGCONT)
        driver.until(lambda: broker.proxy.turned_away > before, "an attempt at a commit while the broker is down")
        broker.start()

        driver.until(lambda: len(driver.unfired) == 1, "a second epoch's decision")
        driver.stopped()
        between = broker.proxy.set(EndTxnTrap(sink.name, nth=PARTICIPANTS, before=crash_after_the_first))
        driver.send(signal.SIGCONT)
        driver.until(between.sprung.is_set, "a crash between two commits")
        assert left == [PARTICIPANTS - 1]
        broker.start()

        driver.until(lambda: not driver.unfired, "a third epoch's decision")
        driver.stopped()
        lost = broker.proxy.set(EndTxnTrap(sink.name))
        driver.send(signal.SIGCONT)
        assert driver.exit_code() == 0, driver.reported
        assert lost.sprung.is_set()
        assert "vote_lost" not in driver.reported
        assert sink.amiss(tmp_path) == {}
