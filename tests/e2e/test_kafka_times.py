"""Transactions that nobody ended in time: aborted by the broker after their decision, or forgotten after their end."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from exactsink.testing import Fault
from tests.e2e.drivers import KILLED, Drivers
from tests.e2e.jobs import PARTICIPANTS, TWO_FILES, write_job, write_source
from tests.e2e.kafka_job import KafkaSink, kafka_sink_of
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import own_kafka
from tests.servers.waiting import wait_until

EPOCHS = 3
TIMEOUT = 10
HASTE = f"transaction_timeout_seconds = {TIMEOUT}\n"
BUDGET = 'epoch_budget = "7 seconds"\n'
FORGETFUL = {
    "transactional.id.expiration.ms": str(TIMEOUT * 1000),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    # A broker that aborts within its first second after a crash may forget its partitions' markers: Kafka 4.3.1, seen.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "4000",
}


@pytest.mark.proof
def test_decided_transactions_that_time_out_or_are_forgotten_while_the_driver_or_the_broker_stands_still(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, other_jvm: WarmJvm, kafka_sink: KafkaSink
) -> None:
    """The waits run side by side: for a stalled driver's, and for what a broker that is down can not end."""
    with (
        own_kafka(FORGETFUL) as broker,
        kafka_sink_of(broker) as decided,
        kafka_sink_of(broker) as committed,
    ):
        stalled = kafka_sink
        lost_job, done_job, stalled_job = (_job(tmp_path / sink.name, sink) for sink in (decided, committed, stalled))
        code, reported = drivers.run(done_job, Fault(f"commit:{committed.name}", "after", "kill", 1), jvm=jvm)
        assert code == KILLED, reported
        driver = drivers.start(stalled_job, Fault("decide", "after", "stall", 1), jvm=other_jvm)
        killed = drivers.start(lost_job, Fault("decide", "after", "kill", 1), jvm=jvm)
        assert killed.exit_code() == KILLED, killed.reported
        last = max(one.started for one in decided.open) + TIMEOUT
        assert (len(decided.open), decided.epochs, committed.epochs) == (PARTICIPANTS, 1, 2)
        broker.stop("kill")
        killed.end()
        assert not killed.unfired

        driver.stopped()
        stalled.until_ended()
        assert (stalled.epochs, stalled.held) == (1, False), "decided, and gone"
        driver.send(signal.SIGCONT)
        assert driver.exit_code() == 0, driver.reported
        assert _written_again(driver.reported, stalled_job)
        assert stalled.amiss(tmp_path / stalled.name) == {}

        wait_until(lambda: time.time() > last, "the other transactions' time to be over, with nobody to end them")
        broker.start()
        decided.until_ended()
        code, reported = drivers.run(lost_job, jvm=jvm)
        assert code == 0, reported
        assert _written_again(reported, lost_job)
        assert decided.amiss(tmp_path / decided.name) == {}

        wait_until(lambda: not committed.ids, "the broker to forget the committed transactions' ids")
        code, reported = drivers.run(done_job, jvm=jvm)
        assert code == 0, reported
        assert "vote_lost" not in reported, "the topic reports what the coordinator has forgotten"
        assert committed.amiss(tmp_path / committed.name) == {}


def _job(folder: Path, sink: KafkaSink) -> Path:
    write_source(folder, EPOCHS * PARTICIPANTS)
    return write_job(folder, sink.sink(HASTE), BUDGET, TWO_FILES)


def _written_again(reported: str, job: Path) -> bool:
    """Return whether every vote of epoch 1 was reported as lost, and was written again and decided."""
    records = [json.loads(path.read_text()) for path in job.with_name("checkpoint.exactsink").glob("journal/*.json")]
    again = [record["epoch"] for record in records if record["kind"] == "redecide"]
    return reported.count("vote_lost job=e2e epoch=1 ") >= PARTICIPANTS and again == [1]
