"""Quotas of the brokers: a throttled client waits over its connection, and no row is lost or doubled."""

from __future__ import annotations

import logging
import os
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

from exactsink_kafka.transactions import Voted
from exactsink_kafka.wire import Wire
from tests.integration.kafka.attempts import attempts_on, topic_of
from tests.integration.kafka.marked import Driver, Site
from tests.integration.kafka.test_sender import amiss
from tests.servers.kafka_view import Kafka


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[float]:
    """What was sent to a broker while it throttled this client: the seconds that were left."""
    early: list[float] = []
    write = KafkaTCPTransport.write

    def written(one: KafkaTCPTransport, data: bytes) -> None:
        left = one.get_protocol()._throttle_time - time.monotonic()
        early.extend([left] if left > 0 else [])
        write(one, data)

    monkeypatch.setattr(KafkaTCPTransport, "write", written)
    caplog.set_level(logging.DEBUG, "kafka.net.connection")
    return early


def limit(wire: Wire, client: str, **quota: float) -> None:
    """Set a quota for a client id."""
    of = AlterClientQuotasRequest.EntryData
    ops = [of.OpData(key=key, value=value, remove=False) for key, value in quota.items()]
    entry = of(entity=[of.EntityData(entity_type="client-id", entity_name=client)], ops=ops)
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    [answer] = wire.asker.use("set a quota", lambda channel: channel.ask([(request, None)]))
    assert [one.error_code for one in answer.entries] == [0]


def test_a_writer_over_its_rate_of_bytes_waits_as_long_as_brokers_ask(
    kafka: Kafka, early: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    given = {"writer": "fast", "producer": {"batch.size": 20_000}}
    attempts = attempts_on(kafka.bootstrap).with_(topic=kafka.new_topic("quota", 3), **given)
    with closing(attempts.wire()) as wire:
        limit(wire, f"exactsink.{attempts.job}.out", producer_byte_rate=100_000)
        rows = [b"%d;%b" % (row, os.urandom(500)) for row in range(3000)]
        caplog.clear()
        vote = attempts.voted(*(pa.record_batch({"value": rows[n : n + 500]}) for n in range(0, 3000, 500)))
        assert caplog.text.count("Connection made") == 2, "the first one, that finds the brokers, and one to the broker"
        assert caplog.text.count("ProduceResponse throttled by broker") > 3
        assert wire.end([Voted.load(vote).transaction], commit=True) == [0]
    assert amiss(kafka, topic_of(attempts), 3000) == ""
    assert early == []


@pytest.mark.parametrize(
    "client", ["exactsink.%s.out", pytest.param("exactsink %s.out driver", marks=pytest.mark.proof)]
)
def test_a_job_over_its_share_of_the_brokers_time_goes_on(
    site: Site, tmp_path: Path, client: str, early: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with site.wire() as wire:
        limit(wire, client % site.job, request_percentage=0.01)  # so little that each answer is over it
    caplog.clear()
    Driver(site, tmp_path / "journal").run(0)
    assert caplog.text.count("Connection made") == 4, "the driver's, and the task's"
    assert caplog.text.count("Response throttled by broker") > 3
    assert (site.values(), early) == ([b"0"], [])
