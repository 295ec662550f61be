"""Raw requests on a real broker: what they find, and what becomes of them when the connection or the broker fails."""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from kafka.protocol.broker_version_data import BrokerVersionData

from exactsink.contract import Retryable
from exactsink_kafka import channel, messages
from exactsink_kafka.messages import LoggedBatch, Seen
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Transaction, Voted
from exactsink_kafka.wire import Wire
from tests.integration.kafka.participants import Participants, transaction_of
from tests.servers.kafka_view import Kafka


def threads(client_id: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if client_id in thread.name]


def test_a_cluster_and_its_topics_are_reported(participants: Participants) -> None:
    reported = participants.wire.cluster()
    assert reported.id == participants.kafka.admin().list_topics(timeout=30).cluster_id
    assert len(reported.brokers) == 1
    assert reported.end_txn >= 3
    assert (reported.transaction_version == 2) == reported.raises == reported.joins, "brokers before 4.0 have neither"

    assert participants.wire.cluster().id == reported.id
    found = participants.wire.topics([participants.topic, "no-such-topic", "not a name!"])
    assert list(found) == [participants.topic]
    assert found[participants.topic].partitions == (0, 1)
    assert str(uuid.UUID(found[participants.topic].id)) == found[participants.topic].id
    assert "no-such-topic" not in participants.kafka.admin().list_topics(timeout=30).topics


def test_a_transaction_is_described_with_where_its_rows_begin(participants: Participants) -> None:
    participants.begin(5, "x", "x", "x", "x").abort_transaction()
    before = time.time()
    participants.begin(0, "a", "b", "c")
    name = participants.id(0)

    reported = participants.wire.describe([name, "an-unknown-id"])
    assert list(reported) == [name]
    assert (reported[name].state, reported[name].timeout_seconds) == ("Ongoing", 60.0)
    assert reported[name].partitions == ((participants.topic, 0), (participants.topic, 1))
    assert reported[name].started is not None
    assert before - 1 <= reported[name].started <= time.time() + 1
    mine = reported[name].transaction
    there = participants.wire.rows_of(mine, reported[name].partitions)
    assert {place[1]: (rows.first_offset, rows.last_sequence) for place, rows in there.items()} == {
        0: (3, 1),  # after two rows and the marker of the other transaction
        1: (3, 0),
    }
    earlier = Transaction(mine.id, mine.producer_id, mine.producer_epoch + 1)
    assert participants.wire.rows_of(earlier, reported[name].partitions) == {}

    assert participants.wire.end([mine], commit=True) == [0]
    after = participants.wire.describe([name])[name]
    assert after.transaction == (earlier if participants.wire.cluster().raises else mine)
    assert after.state in ("PrepareCommit", "CompleteCommit")
    assert (after.started is None) == (after.state == "CompleteCommit")


@pytest.mark.parametrize("version", [0, 2], ids=["no pattern", "pattern"])
def test_open_transactions_are_listed_by_prefix_also_where_brokers_take_no_pattern(
    participants: Participants, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    made = messages.listing_request

    def of_version(states: Iterable[str], prefix: str) -> Any:
        request = made(states, prefix)
        request._max_version = version
        return request

    monkeypatch.setattr(messages, "listing_request", of_version)
    job = participants.job
    names = [f"{job}.a.g1", f"{job}.a.g2", f"{job}xa.g1", f"{job}.a", f"x{job}.a.g1"]
    for name in names:
        participants.begin(name, "row")
    participants.begin(f"{job}.a.g3", "row").commit_transaction()
    participants.kafka.settle()

    assert sorted(one.transaction.id for one in participants.wire.ongoing(f"{job}.a.g")) == names[:2]
    reported = participants.wire.describe(names).values()
    participants.wire.end([one.transaction for one in reported], commit=False)


def test_ends_are_answered_in_order_whatever_becomes_of_each(participants: Participants) -> None:
    votes = [transaction_of(vote) for vote in participants.votes(3)]
    unknown = Transaction(participants.id(77), 1, 0)
    stale = Transaction(votes[1].id, votes[1].producer_id, votes[1].producer_epoch + 5)
    asked = [unknown, votes[0], stale, votes[1], votes[0], votes[2]]
    assert participants.wire.end(asked, commit=True) == [49, 0, 90, 0, 0, 0]
    assert participants.wire.end(asked, commit=False)[1] == 48
    assert participants.wire.end([], commit=True) == []


def test_what_lies_at_an_offset_is_seen_as_a_reader_of_what_is_committed(participants: Participants) -> None:
    committed, aborted = participants.vote(0, "a", "b", "c"), participants.vote(1, "d", "e")
    participants.end(committed, commit=True)
    participants.end(aborted, commit=False)
    [written] = Voted.load(aborted).written
    wire, one, lost = participants.wire, transaction_of(committed), transaction_of(aborted)
    participants.commit(committed, aborted)
    ends = participants.begin(2, "open", "open") and written.first_offsets[0] + 3
    batch = LoggedBatch(0, 1, one.producer, rows=2, ends=False)
    assert wire.look(written.topic_id, 0, 0) == Seen(
        0, 0, ends, one.producer, frozenset({(lost.producer_id, 2)}), batch
    )
    assert wire.look(written.topic_id, 0, 1).producer == one.producer
    assert wire.look(written.topic_id, 0, 2).producer == lost.producer
    assert wire.look(written.topic_id, 0, 2).aborted == {(lost.producer_id, 2)}
    at_a_marker = written.first_offsets[1] + 1
    assert wire.look(written.topic_id, 1, at_a_marker).producer is None
    assert wire.look(written.topic_id, 0, ends).producer is None  # not for readers yet
    assert wire.look(written.topic_id, 0, 1000) == Seen(1, 0, ends, None, frozenset())
    assert wire.look(str(uuid.uuid4()), 0, 0) == Seen(100, -1, -1, None, frozenset())


def test_a_broker_that_is_not_there_is_asked_for_as_long_as_the_patience_lasts_and_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        wire = Wire(KafkaOptions(bootstrap_servers=address), "to-nobody", patience_seconds=0.5)
        began = time.monotonic()
        with pytest.raises(Retryable, match=f"describe transactions: Kafka at {address} did not answer") as raised:
            wire.describe(["x"])
        with pytest.raises(Retryable, match=f"Kafka at {address} did not answer"):
            wire.cluster()
    assert 0.4 < time.monotonic() - began < 30
    assert "ECONNREFUSED" in raised.value.why
    assert threads("to-nobody") == []
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert address not in "".join(capfd.readouterr())
    wire.close()


def test_a_broker_that_takes_connections_and_answers_nothing_does_not_cost_the_whole_patience(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "ANSWER_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port, turns = silent.getsockname()[1], iter([1])
        silent_last = partial(sorted, key=lambda broker: broker.port == port)
        monkeypatch.setattr("kafka.net.manager.random.choice", lambda brokers: silent_last(brokers)[next(turns, 0)])
        options = KafkaOptions(bootstrap_servers=f"127.0.0.1:{port},{kafka.bootstrap}")
        with closing(Wire(options, "test", patience_seconds=60)) as wire:
            assert wire.cluster().brokers == (1,)
    assert next(turns, None) is None, "the silent one was tried first"


def test_a_broker_is_asked_in_its_own_versions_whatever_the_first_one_takes(kafka: Kafka) -> None:
    with closing(Wire(KafkaOptions(bootstrap_servers=kafka.bootstrap), "upgraded")) as wire:
        manager = wire.asker.use("connect", lambda channel: channel._manager)
        assert 1 not in manager._conns, "only the first connection was made"
        manager.broker_version_data = BrokerVersionData((2, 6))  # which has no DescribeTransactions
        assert wire.describe(["nobody"]) == {}


def test_what_the_library_logs_is_there_for_who_asks_for_it(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    logged = logging.getLogger("kafka.net.manager")
    filters = list(logged.filters)
    with caplog.at_level(logging.DEBUG, "kafka"):
        wire = Wire(KafkaOptions(bootstrap_servers=kafka.bootstrap), "watched")
        wire.cluster()
        logged.warning("of somebody else's client")
        wire.close()
    mine = [record for record in caplog.records if record.threadName == "kafka-io-watched"]
    assert any("Bootstrap complete" in record.getMessage() for record in mine)
    assert {record.levelname for record in mine} == {"DEBUG"}
    assert [r.levelname for r in caplog.records if r.getMessage() == "of somebody else's client"] == ["WARNING"]
    assert logged.filters == filters
