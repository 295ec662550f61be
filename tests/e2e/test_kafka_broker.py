"""The broker crashes around the commits, and its answers get lost on the way: the job ends well by itself."""

from __future__ import annotations

import signal
from pathlib import Path

from exactsink.testing import Fault
from tests.e2e.kafka_cut import EndTxnTrap, cut_kafka
from tests.e2e.kafka_flow import Input, flow_of
from tests.e2e.lives import Lives
from tests.e2e.postgres_job import PARTICIPANTS
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.kafka_fixtures"]

EPOCHS = 5


def test_broker_that_crashes_before_and_between_the_commits_and_an_answer_that_gets_lost(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, kafka_input: Input
) -> None:
    left: list[int] = []
    with cut_kafka() as broker, flow_of(broker, kafka_input) as flow:

        def crash_after_the_first() -> None:
            wait_until(lambda: len(flow.open) < PARTICIPANTS, "the first commit of two")
            left.append(len(flow.open))
            broker.stop("kill")

        job = flow.job(tmp_path, flow.records_sink(way=broker.proxy.address), EPOCHS, "records")
        stalls = [Fault("decide", "after", "stall", epoch) for epoch in (1, 2, 3)]
        life = lives.start(job, *stalls, jvm=jvm)

        life.stopped()
        assert (len(flow.open), flow.held) == (PARTICIPANTS, True)
        broker.stop("kill")
        before = broker.proxy.turned_away
        life.send(signal.SIGCONT)
        life.until(lambda: broker.proxy.turned_away > before, "an attempt at a commit while the broker is down")
        broker.start()

        life.until(lambda: len(life.unfired) == 1, "a second epoch's decision")
        life.stopped()
        between = broker.proxy.set(EndTxnTrap(flow.sink, nth=PARTICIPANTS, before=crash_after_the_first))
        life.send(signal.SIGCONT)
        life.until(between.sprung.is_set, "a crash between two commits")
        assert left == [PARTICIPANTS - 1]
        broker.start()

        life.until(lambda: not life.unfired, "a third epoch's decision")
        life.stopped()
        lost = broker.proxy.set(EndTxnTrap(flow.sink))
        life.send(signal.SIGCONT)
        assert life.exit_code() == 0, life.reported
        assert lost.sprung.is_set()
        assert "vote_lost" not in life.reported
        assert flow.amiss(EPOCHS) == {}
