"""What a cluster is asked before the first row: each finding on a topic that causes it, and none on a good one."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import ConfigResource

from exactsink.contract import ConfigError, Fatal, Retryable
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.wire import Wire
from tests.integration.kafka.preflight_site import ROWS, check, context
from tests.servers.kafka import Kafka
from tests.servers.ports import Ports

DAY = 86_400
TIMED = ROWS.append(pa.field("timestamp", pa.timestamp("us", "UTC")))


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    """A good topic, that no test changes."""
    return kafka.new_topic("preflight")


@pytest.fixture
def options(kafka: Kafka, topic: str) -> dict[str, Any]:
    return {"bootstrap_servers": kafka.bootstrap, "topic": topic}


def test_a_good_cluster_and_topic_give_no_finding(options: dict[str, Any]) -> None:
    given = {"producer": {"compression.type": "zstd", "linger.ms": 50, "socket.nagle.disable": True}}
    assert check(options | given) == []


def test_looking_changes_nothing_on_the_cluster(kafka: Kafka, options: dict[str, Any]) -> None:
    """No topic, no setting, and no transactional id: the probe of an id's grant leaves none behind."""
    check(options)  # a new cluster makes its own topic when first asked of one
    wire, admin = Wire(KafkaOptions.model_validate(options), "exactsink tests"), kafka.admin()

    def state() -> tuple[object, ...]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, options["topic"])
        configs = admin.describe_configs([resource])[resource].result(10)
        ids = wire.describe(
            ["preflight-looks.orders.none", "preflight-looks.orders.preflight", "preflight-looks.orders.mark"]
        )
        mine = {name for name in admin.list_topics(timeout=10).topics if name.startswith(("__", "nowhere"))}
        return mine, {name: entry.value for name, entry in configs.items()}, ids

    before = state()
    for topic in (options["topic"], "nowhere"):
        check(options | {"topic": topic}, context("preflight-looks"))
    assert state() == before
    wire.close()


@pytest.mark.parametrize(
    ("configs", "rows", "severity", "message", "fix"),
    [
        ({"min_insync_replicas": "2"}, ROWS, "error", "min.insync.replicas is 2", "min.insync.replicas=1"),
        ({"cleanup_policy": "compact,delete"}, ROWS.remove(0), "error", "have no key", "cleanup.policy=delete"),
        ({}, TIMED, "warning", "for 7 days (retention.ms) by their column timestamp", "retention.ms=-1"),
    ],
)
def test_a_topic_that_takes_or_keeps_no_such_rows_is_a_finding(
    kafka: Kafka, configs: dict[str, str], rows: pa.Schema, severity: str, message: str, fix: str
) -> None:
    name = kafka.new_topic("preflight-odd", 1, **configs)
    [finding] = check({"bootstrap_servers": kafka.bootstrap, "topic": name}, rows=rows)
    assert (finding.severity, message in finding.message, fix in finding.fix) == (severity, True, True), finding
    assert f"--entity-name {name} " in finding.fix


def test_a_transaction_that_brokers_end_too_early_is_an_error_before_the_first_row(options: dict[str, Any]) -> None:
    [error] = check(options | {"transaction_timeout_seconds": 901})
    assert (error.severity, "the brokers allow 900 (transaction.max.timeout.ms)" in error.message) == ("error", True)
    assert "transaction.max.timeout.ms=901000 in every broker's server.properties" in error.fix
    assert "transaction_timeout_seconds = 900 of the sink" in error.fix
    [error] = check(options | {"transaction_timeout_seconds": 659.5})
    assert "an epoch may take 600 s (epoch_budget) and its commit 60 s" in error.message
    assert error.fix.startswith("transaction_timeout_seconds = 660 in the sink's options; or epoch_budget = ")
    assert check(options | {"transaction_timeout_seconds": 660}) == []


def test_a_pause_that_outlasts_ids_and_rows_is_a_warning_with_the_ways_out(
    kafka: Kafka, options: dict[str, Any]
) -> None:
    longer = context(longest_pause_seconds=8 * DAY)
    options = {**options, "marks_may_expire": True}
    [warning, expiry] = check(options, longer)
    assert expiry.severity == "warning"
    assert "forget the sink's mark 7 days after its last epoch (offsets.retention.minutes)" in expiry.message
    assert f"offsets.retention.minutes={8 * 24 * 60} in every broker" in expiry.fix
    [refused] = [one for one in check(options | {"marks_may_expire": False}, longer) if one.severity == "error"]
    assert (refused.message, refused.fix) == (expiry.message, expiry.fix)
    assert warning.severity == "warning"
    assert "how a transaction ended is known for 7 days" in warning.message
    assert 'longest_pause = "10080 minutes"' in warning.fix
    assert f"transactional.id.expiration.ms={8 * DAY * 1000}" in warning.fix
    kept = kafka.new_topic("preflight-odd", 1, retention_ms="-1")
    assert check(options | {"topic": kept}, longer) == [expiry]


def test_errors_stand_first_and_the_order_is_fixed(kafka: Kafka) -> None:
    name = kafka.new_topic("preflight-odd", 1, cleanup_policy="compact", min_insync_replicas="3")
    options = {"bootstrap_servers": kafka.bootstrap, "topic": name, "transaction_timeout_seconds": 1000}
    found = check(options)
    assert [finding.severity for finding in found] == ["error"] * 2 + ["warning"]
    subjects = ["min.insync.replicas is 3", "brokers allow 900", "compacted"]
    assert [subject in finding.message for subject, finding in zip(subjects, found, strict=True)] == [True] * 3


# A cluster that can't be reached, and settings that nobody takes


def test_brokers_that_do_not_answer_are_named_and_may_be_tried_again(kafka: Kafka, options: dict[str, Any]) -> None:
    ports = Ports(1)
    [closed] = [f"127.0.0.1:{number}" for number in ports.numbers]
    try:
        with pytest.raises(Retryable, match=f"reach Kafka at {closed},no.invalid:9092") as failed:
            check(options | {"bootstrap_servers": f"{closed},no.invalid:9092"}, patience=0.5)
        assert "Connection refused" in failed.value.why
        assert "bootstrap_servers" in failed.value.next
        assert check(options | {"bootstrap_servers": f"{closed},{kafka.bootstrap}"}) == []
    finally:
        ports.close()


@pytest.mark.parametrize(("protocol", "closing"), [("PLAINTEXT", False), ("SSL", False), ("SSL", True)])
def test_a_port_that_closes_or_says_nothing_is_not_taken_for_a_wrong_config(
    options: dict[str, Any], protocol: str, closing: bool
) -> None:
    """A broker on its way down or up, or a balancer before one: the next start may find it well."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
        taker = threading.Thread(target=_take_all, args=(port, closing))
        taker.start()
        try:
            with pytest.raises(Retryable, match=f"reach Kafka at {address}"):
                check(options | {"bootstrap_servers": address, "security_protocol": protocol}, patience=0.5)
        finally:
            port.shutdown(socket.SHUT_RDWR)  # ends `accept`
            taker.join()


def _take_all(port: socket.socket, closing: bool) -> None:
    """Take connections until the port is gone, and say nothing on any."""
    kept = []
    with suppress(OSError):
        while True:
            taken, _ = port.accept()
            if closing:
                taken.close()
            else:
                kept.append(taken)
    for taken in kept:
        taken.close()


def test_a_plain_listener_is_named_to_a_client_that_would_log_in(options: dict[str, Any]) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "s3cr3t"}
    with pytest.raises(Fatal, match="wants no login, SASL_PLAINTEXT would log in 'me' by PLAIN") as failed:
        check(options | {"security_protocol": "SASL_PLAINTEXT", **login})
    assert 'security_protocol = "PLAINTEXT"' in failed.value.next
    assert "s3cr3t" not in str(failed.value)


@pytest.mark.parametrize(
    ("producer", "said"),
    [
        ({"lingerms": 5}, 'No such configuration property: "lingerms"'),
        ({"compression.type": "s3cr3t"}, 'Invalid value "..." for configuration property'),
        ({"queue.buffering.max.ms": "a while"}, 'Invalid value for configuration property "queue.buffering.max.ms"'),
    ],
)
def test_a_producer_setting_that_librdkafka_does_not_take_is_a_mistake_of_the_config(
    options: dict[str, Any], producer: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        check(options | {"producer": producer})
    assert said in str(failed.value)
    assert "s3cr3t" not in str(failed.value)
