"""Clusters where a transaction's end does not fence its task: transaction.version 0, which brokers before 4.0 have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from exactsink.contract import Committed, ExactsinkError, JobContext, Lost, Unknown
from exactsink.testing import Session
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.preflight import findings
from exactsink_kafka.transactions import Voted
from tests.assessed import commit_assessed
from tests.integration.kafka.attempts import Attempts, attempts_on, rows, topic_of
from tests.servers.kafka import KafkaServer
from tests.servers.kafka_jars import BROKER, OLDER, VERSION
from tests.servers.process import owned


@pytest.fixture(scope="module", params=["transaction.version=0", pytest.param("3.9", marks=pytest.mark.proof)])
def server(request: pytest.FixtureRequest) -> Iterator[KafkaServer]:
    old = request.param == "3.9"
    features = () if old or VERSION < "3.8" else ("--feature", request.param)  # Kafka 3.7 has none to choose
    made = KafkaServer(release=OLDER if old else BROKER, formatting=features)
    with owned(made):
        yield made


@pytest.fixture(params=["plain", "fast"])
def attempts(server: KafkaServer, request: pytest.FixtureRequest) -> Attempts:
    made = attempts_on(server.bootstrap).with_(writer=request.param, topic=server.new_topic("older", partitions=2))
    assert not made.raises
    return made


def pinned(partition: int, *values: bytes) -> pa.RecordBatch:
    named = pa.array([partition] * len(values), pa.int32())
    return rows(*((None, value) for value in values), partition=named)


def session(attempts: Attempts) -> Session:
    return Session(KafkaBackend(attempts.options), JobContext(attempts.job, "out", "", 1), attempts.txn().token)


def values(server: KafkaServer, attempts: Attempts) -> list[bytes | None]:
    return sorted(record.value for record in server.rows(topic_of(attempts)))


def test_a_task_that_goes_on_after_the_sweep_has_no_vote_and_leaves_nothing_open(
    server: KafkaServer, attempts: Attempts
) -> None:
    first = pinned(0, b"swept")
    writer = attempts.writer(first.schema)
    writer.write(first)
    writer._producer.flush(30)
    assert attempts.end(attempts.described().transaction, commit=False) == [0]
    with pytest.raises(ExactsinkError, match="no longer this attempt's"):  # its next partition is new to it
        writer.write(pinned(1, b"late"))
        writer.pre_commit()
    assert attempts.open_ids() == []
    assert values(server, attempts) == []


def test_a_use_of_an_id_has_two_epochs_and_no_other_s_end_is_taken_for_its_own(
    server: KafkaServer, attempts: Attempts
) -> None:
    batches = [pinned(0, b"%d" % number) for number in range(4)]
    kept, lost = (attempts.voted(batches[number], attempt=number) for number in (0, 1))
    assert commit_assessed(session(attempts), 0, [kept]) == [Committed()]
    assert attempts.end(Voted.load(lost).transaction, commit=False) == [0]
    later = [attempts.voted(batches[number + 2], attempt=number) for number in (0, 1)]
    for before, after in zip((kept, lost), later, strict=True):
        used, taken = (Voted.load(one).transaction for one in (before, after))
        assert (taken.id, taken.producer_id) == (used.id, used.producer_id)
        assert taken.producer_epoch - used.producer_epoch >= 2
    assert commit_assessed(session(attempts), 0, later[:1]) == [Committed()]
    assert attempts.end(Voted.load(later[1]).transaction, commit=False) == [0]
    shown, gone, again, never = commit_assessed(session(attempts), 0, [kept, lost, *later])
    assert {type(one).__name__ for one in (shown, again)} == {"AlreadyCommitted"}
    assert {type(one) for one in (gone, never)} == {Lost}
    assert values(server, attempts) == [b"0", b"2"]
    server.delete_topic(topic_of(attempts))  # and the proofs with it
    outcomes = commit_assessed(session(attempts), 0, [kept, lost])
    assert all(isinstance(one, Unknown) for one in outcomes), "the later use's end says nothing of this one"


def test_check_finds_nothing_there(server: KafkaServer, attempts: Attempts) -> None:
    ctx = JobContext(attempts.job, "out", "", 1)
    with closing(attempts.wire()) as wire:
        options = attempts.with_(transaction_timeout_seconds=660).options
        found = findings(options, ctx, wire, pinned(0, b"").schema)
        assert [one.message for one in found if one.severity == "error"] == []
