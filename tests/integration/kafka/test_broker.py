"""The brokers of these tests themselves: they show what is committed, and come back, end and refuse as they should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.servers.kafka import Kafka, KafkaServer
from tests.servers.kafka_secure import SecureKafka, secure_kafka
from tests.servers.kafka_view import KafkaAdminClient
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures"]

ROOT = Path(__file__).parents[3]
CHILD = "from tests.servers.kafka import KafkaServer; KafkaServer().start()"


@pytest.fixture(scope="module")
def secured() -> Iterator[SecureKafka]:
    with secure_kafka() as site:
        yield site


def open_transaction(kafka: Kafka, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def test_rows_are_what_is_committed_whole_and_in_order(kafka: Kafka) -> None:
    topic = kafka.new_topic("rows", partitions=2)
    headers = [("h", b"1"), ("h", None), ("", b"")]
    producer = open_transaction(kafka, topic)
    producer.produce(topic, b"", None, partition=1, timestamp=1_000)
    producer.produce(topic, b"v", b"k", partition=0, timestamp=2_000, headers=headers)
    producer.produce(topic, None, b"", partition=1, timestamp=3_000)
    assert producer.flush(30) == 0
    assert kafka.rows(topic) == []
    assert kafka.held(topic)

    producer.commit_transaction(30)
    seen = [(row.partition, row.offset, row.key, row.value, row.headers, row.timestamp) for row in kafka.rows(topic)]
    assert seen == [
        (0, 0, b"k", b"v", (("h", b"1"), ("h", None), ("", b"")), 2_000),
        (1, 0, None, b"", (), 1_000),
        (1, 1, b"", None, (), 3_000),
    ]
    assert not kafka.held(topic)


def test_rows_pass_over_what_was_aborted_and_end_before_what_is_open(kafka: Kafka) -> None:
    topic = kafka.new_topic("rows", partitions=1)
    aborted = open_transaction(kafka, f"{topic}-aborted")
    aborted.produce(topic, b"aborted")
    assert aborted.flush(30) == 0
    aborted.abort_transaction(30)
    assert kafka.rows(topic) == []
    assert not kafka.held(topic)

    plain = Producer({"bootstrap.servers": kafka.bootstrap})
    plain.produce(topic, b"before")
    assert plain.flush(30) == 0
    still_open = open_transaction(kafka, f"{topic}-open")
    still_open.produce(topic, b"open")
    assert still_open.flush(30) == 0
    plain.produce(topic, b"behind")
    assert plain.flush(30) == 0
    assert [row.value for row in kafka.rows(topic)] == [b"before"]
    assert kafka.held(topic)

    still_open.abort_transaction(30)
    assert [row.value for row in kafka.rows(topic)] == [b"before", b"behind"]


def test_settled_means_that_the_broker_has_marked_what_it_answered_before(kafka: Kafka) -> None:
    topic = kafka.new_topic("settled", partitions=20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    states: list[str] = []
    for _ in range(8):
        producer.begin_transaction()
        for partition in range(20):
            producer.produce(topic, b"v", partition=partition)
        producer.commit_transaction(30)
        kafka.settle()
        states.append(client.describe_transactions([topic])[topic].state)
    client.close()
    assert states == ["CompleteCommit"] * 8


def test_a_deleted_topic_is_gone_and_has_no_rows_to_read(kafka: Kafka) -> None:
    topic = kafka.new_topic("gone")
    kafka.delete_topic(topic)
    with pytest.raises(LookupError, match=topic):
        kafka.rows(topic)


def test_a_broker_killed_and_started_again_has_its_address_its_rows_and_its_open_transactions(
    secured: SecureKafka,
) -> None:
    server = secured.server
    topic = server.new_topic("kept")
    committed = open_transaction(server, "committed")
    committed.produce(topic, b"committed")
    committed.commit_transaction(30)
    still_open = open_transaction(server, "open")
    still_open.produce(topic, b"open")
    assert still_open.flush(30) == 0
    before, address = server.rows(topic), server.bootstrap
    assert [row.value for row in before] == [b"committed"]

    server.stall()
    with pytest.raises(KafkaException, match=r"_TRANSPORT|_TIMED_OUT"):
        server.admin().list_topics(timeout=0.2)
    server.resume()
    assert server.rows(topic) == before

    killed = server.pid
    server.stop("kill")
    assert not Path(f"/proc/{killed}").exists()
    server.start()
    assert (server.bootstrap, server.pid == killed) == (address, False)
    assert server.rows(topic) == before
    assert server.held(topic)


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"formatted(.|\n)*transaction\.max\.timeout\.ms"):
        KafkaServer({"transaction.max.timeout.ms": "-5"})
    server = KafkaServer({"authorizer.class.name": "no.such.Authorizer"})
    with pytest.raises(RuntimeError, match=r"ended with 1(.|\n)*no\.such\.Authorizer"):
        server.start()
    server.remove()
    assert not server.folder.exists()


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # nobody is left to remove the broker's folder
    with subprocess.Popen([sys.executable, "-c", CHILD], cwd=ROOT, stdin=subprocess.DEVNULL, env=environment) as owner:
        found: list[Path] = []

        def runs() -> bool:
            found[:] = brokers_of(owner.pid)
            return bool(found)

        try:
            wait_until(runs, "the broker to run")
        finally:
            owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(found[0]), "the broker to end")


def brokers_of(owner: int) -> list[Path]:
    """Find the owner's children that are brokers by now, no more the program that becomes one."""
    children = [Path("/proc", pid) for pid in Path(f"/proc/{owner}/task/{owner}/children").read_text().split()]
    return [
        child
        for child in children
        if (child / "comm").read_text() == "java\n" and b"\0kafka.Kafka\0" in (child / "cmdline").read_bytes()
    ]


def is_alive(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_secured_listener_refuses_wrong_passwords_strangers_and_what_was_not_allowed(secured: SecureKafka) -> None:
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        right = secured.settings("reader", mechanism)
        assert reasons(right) == []
        assert any("uthentication failed" in reason for reason in reasons({**right, "sasl.password": "wrong"}))
        stranger = {**right, "ssl.ca.location": str(secured.wrong_ca)}
        assert any("certificate verify failed" in reason for reason in reasons(stranger))
        assert reasons({**right, "security.protocol": "SASL_PLAINTEXT"}) != []

    topic = secured.server.new_topic("allowed")
    settings = {**secured.settings("writer"), "transactional.id": f"job-{topic}", "log_level": 0}
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        Producer(settings).init_transactions(30)
    secured.allow("writer", "WRITE", "TRANSACTIONAL_ID", "job-", prefix=True)
    failures: list[str] = []
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"refused", on_delivery=lambda error, _: failures.append(str(error and error.name())))
    assert producer.flush(30) == 0
    assert failures == ["TOPIC_AUTHORIZATION_FAILED"]
    producer.abort_transaction(30)

    secured.allow("writer", "WRITE", "TOPIC", topic)
    writer = Producer(settings)
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"allowed")
    writer.commit_transaction(30)
    assert [row.value for row in secured.server.rows(topic)] == [b"allowed"]


def reasons(settings: dict[str, object]) -> list[str]:
    """Return why the broker can't be asked with these settings; nothing if it can."""
    seen: list[str] = []
    client = AdminClient({**settings, "log_level": 0, "error_cb": lambda error: seen.append(error.str())})
    asked = client.describe_cluster(request_timeout=30)

    def known() -> bool:
        client.poll(0.02)
        return bool(seen) or asked.done()

    wait_until(known, "the broker to answer or to refuse")
    return seen
