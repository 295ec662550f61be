"""Transactions that nobody ended in time: aborted by the broker, refused before a decision, or forgotten after it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from exactsink.testing import Fault
from tests.e2e import slow_tasks
from tests.e2e.jobs import SINKS, SPARK
from tests.e2e.kafka_flow import Flow, Input, flow_of
from tests.e2e.lives import KILLED, Lives
from tests.e2e.postgres_job import PARTICIPANTS
from tests.e2e.rows import leftovers, wrong_rows
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka, own_kafka
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.kafka_fixtures"]

EPOCHS = 3
TIMEOUT, MARGIN = 10, 2.5
HASTE = f"transaction_timeout_seconds = {TIMEOUT}\n"
BUDGET = 'epoch_budget = "7 seconds"\n'
FORGETFUL = {
    "transactional.id.expiration.ms": str(TIMEOUT * 1000),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    # A broker that aborts within its first second after a crash may forget its partitions' markers: Kafka 4.3.1, seen.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "4000",
}


def test_decided_transactions_that_time_out_or_are_forgotten_while_the_driver_or_the_broker_stands_still(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, other_jvm: WarmJvm, kafka: Kafka, kafka_input: Input
) -> None:
    """The waits run side by side: for a stalled driver's, and for what a broker that is down can not end."""
    with (
        own_kafka(FORGETFUL) as broker,
        flow_of(broker, kafka_input) as decided,
        flow_of(broker, kafka_input) as committed,
        flow_of(kafka, kafka_input) as stalled,
    ):
        lost_job, done_job, stalled_job = (
            flow.job(_folder(tmp_path, flow), flow.records_sink(HASTE), EPOCHS, "records", BUDGET)
            for flow in (decided, committed, stalled)
        )
        code, reported = lives.run(done_job, Fault(f"commit:{committed.sink}", "after", "kill", 1), jvm=jvm)
        assert code == KILLED, reported
        life = lives.start(stalled_job, Fault("decide", "after", "stall", 1), jvm=other_jvm)
        killed = lives.start(lost_job, Fault("decide", "after", "kill", 1), jvm=jvm)
        assert killed.exit_code() == KILLED, killed.reported
        last = max(one.started or 0 for one in decided.open) + TIMEOUT
        assert (len(decided.open), decided.epochs, committed.epochs) == (PARTICIPANTS, 1, 2)
        broker.stop("kill")
        killed.end()
        assert not killed.unfired

        life.stopped()
        stalled.until_ended()
        assert (stalled.epochs, stalled.held) == (1, False), "decided, and gone"
        life.send(signal.SIGCONT)
        assert life.exit_code() == 0, life.reported
        assert _written_again(life.reported, stalled_job)
        assert stalled.amiss(EPOCHS) == {}

        wait_until(lambda: time.time() > last, "the other transactions' time to be over, with nobody to end them")
        broker.start()
        decided.until_ended()
        code, reported = lives.run(lost_job, jvm=jvm)
        assert code == 0, reported
        assert _written_again(reported, lost_job)
        assert decided.amiss(EPOCHS) == {}

        wait_until(lambda: not committed.ids, "the broker to forget the committed transactions' ids")
        code, reported = lives.run(done_job, jvm=jvm)
        assert code == 0, reported
        assert "vote_lost" not in reported, "the topic reports what the coordinator has forgotten"
        assert committed.amiss(EPOCHS) == {}


def _folder(place: Path, flow: Flow) -> Path:
    folder = place / flow.sink
    folder.mkdir()
    return folder


def _written_again(reported: str, job: Path) -> bool:
    """Return whether every vote of epoch 1 was reported as lost, and was written again and decided."""
    records = [json.loads(path.read_text()) for path in job.with_name("checkpoint.exactsink").glob("journal/*.json")]
    again = [record["epoch"] for record in records if record["kind"] == "redecide"]
    return reported.count("vote_lost job=e2e epoch=1 ") >= PARTICIPANTS and again == [1]


def test_slow_task_meets_its_transactions_end_and_a_late_decision_is_refused_or_warned_of(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, flow: Flow
) -> None:
    flow.input.write_files(tmp_path, 4)
    spark = SPARK + slow_tasks.CONF % ("hold", "0")
    job = flow.job(tmp_path, flow.rows_sink(HASTE) + SINKS, 4, "slow_rows", BUDGET, spark)
    stalls = [Fault("vote", "before", "stall", epoch) for epoch in (2, 3)]
    life = lives.start(job, *stalls, jvm=jvm)
    life.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
    life.until(lambda: bool(flow.open), "its transaction")
    flow.until_ended()
    (tmp_path / "go").touch()

    life.until(lambda: len(life.unfired) == 1, "the next epoch's votes")
    life.stopped()
    assert "query_restarted job=e2e attempt=1" in life.reported
    assert flow.epochs == 2
    wait_until(lambda: _left(flow) < MARGIN, "too little time to commit in")
    life.send(signal.SIGCONT)

    life.until(lambda: not life.unfired, "the last epoch's votes")
    life.stopped()
    assert "s are left to commit in" in life.reported
    assert "deadline_near" not in life.reported
    assert flow.epochs == 3
    wait_until(lambda: _left(flow) < TIMEOUT / 2, "half of the time to be used")
    life.send(signal.SIGCONT)
    assert life.exit_code() == 0, life.reported
    assert f"deadline_near job=e2e epoch=3 sink={flow.sink}" in life.reported
    assert flow.amiss_rows(tmp_path) == {}
    assert wrong_rows(tmp_path, sinks=("lake", "table")) == {}
    assert leftovers(tmp_path) == []


def _left(flow: Flow) -> float:
    """Return the seconds until the first transaction's time is over."""
    return min((one.started or 0) + TIMEOUT - time.time() for one in flow.open)
