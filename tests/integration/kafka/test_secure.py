"""A broker that talks TLS, wants a login and has access rules: what the sink needs of it, and what it says without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import AlreadyCommitted, Committed, ExactsinkError, Fatal, JobContext, Lost, Retryable
from exactsink.testing import Session
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.outcomes import read_back
from exactsink_kafka.transactions import Transaction, Voted
from exactsink_kafka.wire import Wire
from tests.integration.kafka.preflight_site import ROWS, check, context, secured
from tests.servers.kafka_jars import VERSION
from tests.servers.kafka_secure import PASSWORDS, SecureKafka, secure_kafka
from tests.servers.waiting import wait_until

JOB = "shop"
NEEDS = (
    ("WRITE", "TOPIC", "{topic}", False),
    ("READ", "TOPIC", "{topic}", False),
    ("DESCRIBE_CONFIGS", "TOPIC", "{topic}", False),
    ("WRITE", "TRANSACTIONAL_ID", "{job}.orders.", True),
    ("READ", "GROUP", "exactsink.{job}.orders", False),
    ("DESCRIBE_CONFIGS", "BROKER", "kafka-cluster", False),
)
"""All that the documentation asks for. Write and Read hold Describe."""


@pytest.fixture(scope="module")
def site() -> Iterator[SecureKafka]:
    with secure_kafka() as made:
        yield made


def allowed(site: SecureKafka, user: str, job: str, without: int | None = None) -> str:
    """Make a topic, and grant what the sink needs of it, save one; give its name."""
    topic = site.server.new_topic("secure", 1)
    for number, (operation, kind, name, prefix) in enumerate(NEEDS):
        if number != without:
            site.allow(user, operation, kind, name.format(topic=topic, job=job), prefix=prefix)
    return topic


@pytest.fixture(scope="module")
def topic(site: SecureKafka) -> str:
    return allowed(site, "writer", JOB)


# What is needed


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_the_documented_grants_are_enough_for_preflight(site: SecureKafka, topic: str, mechanism: str) -> None:
    assert check(secured(site, topic=topic, sasl_mechanism=mechanism), context(JOB)) == []


@pytest.mark.parametrize(("writer", "token"), [("plain", "aa"), ("fast", "bb")])
def test_the_documented_grants_are_enough_for_an_epoch_s_whole_life(
    site: SecureKafka, topic: str, writer: str, token: str
) -> None:
    """Open, write, vote, list, commit, repeat, abort, and read as evidence."""
    options = KafkaOptions.model_validate(secured(site, topic=topic, writer=writer))
    session = Session(KafkaBackend(options), JobContext(JOB, "orders", "", generation=1, lineage="l"), token)
    before = len(site.server.rows(topic))
    votes = []
    for epoch in (0, 1):
        votes += session.prepare(epoch, [pa.table({"key": [b"k"], "value": [b"v%d" % epoch]}, ROWS)])
        assert [entry.ref for entry in session.listed()] == [votes[-1].ref]
        if epoch == 0:
            assert session.commit(0, votes) == [Committed()]
            assert session.commit(0, votes) == [AlreadyCommitted()]
    session.abort(*session.listed())
    wire = Wire(options, "exactsink tests")
    proofs = [read_back(wire, Voted.load(vote))[0] for vote in votes]
    wire.close()
    assert [type(proof) for proof in proofs] == [AlreadyCommitted, Lost]
    assert [row.value for row in site.server.rows(topic)][before:] == [b"v0"]


@pytest.mark.parametrize(
    ("without", "severity", "message", "fix"),
    [
        (0, "error", "topic {topic}: User:writer lacks Write", "--operation Write --topic {topic}"),
        (1, "error", "topic {topic}: User:writer lacks Read", "--operation Read --topic {topic}"),
        (2, "warning", "settings of topic {topic}", "--operation DescribeConfigs --topic {topic}"),
        (3, "error", "ids that begin with {job}.orders.", "--transactional-id {job}.orders. --resource-pattern-type"),
        (4, "error", "offsets of group exactsink.{job}.orders", "--operation Read --group exactsink.{job}.orders"),
    ],
)
def test_a_grant_that_is_missing_is_named_with_the_command_that_gives_it(
    site: SecureKafka, topic: str, without: int, severity: str, message: str, fix: str
) -> None:
    job = f"less-{without}"
    names = {"topic": allowed(site, "writer", job, without), "job": job}
    [finding] = check(secured(site, topic=names["topic"]), context(job))
    assert (finding.severity, message.format(**names) in finding.message) == (severity, True), finding
    assert fix.format(**names) in finding.fix
    assert finding.fix.startswith(
        f"kafka-acls.sh --bootstrap-server {site.bootstrap} --command-config admin.properties --add "
        "--allow-principal User:writer --operation "
    )


def test_a_user_without_any_grant_learns_all_that_is_missing(site: SecureKafka, topic: str) -> None:
    found = check(secured(site, "reader", topic=topic), context("none"))
    if found[1].message.startswith("transaction.version is 0"):  # before Kafka 4.0
        assert "--operation DescribeConfigs --cluster" in found.pop(1).fix
    assert [finding.severity for finding in found] == ["error", "error", "warning", "error"]
    subjects = ["may not see whether it exists", "none.orders.", "brokers' settings", "group exactsink.none.orders"]
    assert [subject in finding.message for subject, finding in zip(subjects, found, strict=True)] == [True] * 4
    fixes = ["Write --operation Read --operation Describe --topic", "--transactional-id", "--cluster", "Read --group"]
    assert [fix in finding.fix for fix, finding in zip(fixes, found, strict=True)] == [True] * 4


# What can't be reached: each cause by its name, and no secret in any


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sasl_password": "wr0ng-Pa55"}, "refused to log in 'writer' by SCRAM-SHA-512: wrong user or password"),
        ({"sasl_mechanism": "PLAIN", "sasl_password": "wr0ng-Pa55"}, "refused to log in 'writer' by PLAIN"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "does not offer SCRAM-SHA-256, only SCRAM-SHA-512,PLAIN"),
        ({"ssl_ca_location": "{wrong_ca}"}, "is not trusted by ssl_ca_location ({wrong_ca})"),
        ({"ssl_ca_location": None}, "is not trusted by the system's certificates"),
        ({"bootstrap_servers": "127.1:{port}"}, "the certificate of 127.1:{port} is for another name"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_ca_location": None}, "expects TLS, security_protocol is SASL_P"),
        (
            {"bootstrap_servers": "127.1:{port}", "ssl_check_hostname": False, "sasl_password": "wr0ng-Pa55"},
            "refused to log in 'writer'",
        ),
        ({"bootstrap_servers": "{plain}"}, "{plain} has no TLS, security_protocol is SASL_SSL"),
    ],
)
def test_what_keeps_a_client_out_is_reported_by_its_cause(
    site: SecureKafka, topic: str, caplog: pytest.LogCaptureFixture, given: dict[str, Any], said: str
) -> None:
    port = site.bootstrap.rsplit(":", 1)[1]
    names = {"wrong_ca": site.wrong_ca, "port": port, "plain": site.server.bootstrap}
    changed = {name: value and value.format(**names) for name, value in given.items()}
    with caplog.at_level(logging.DEBUG), pytest.raises(Fatal) as failed:
        check(secured(site, topic=topic, **changed), context(JOB))
    assert said.format(**names) in failed.value.why
    assert failed.value.next
    assert_no_secret(failed.value, caplog)


def test_a_client_without_a_login_is_reported_that_the_listener_may_want_one(site: SecureKafka, topic: str) -> None:
    options = {"bootstrap_servers": site.bootstrap, "security_protocol": "SSL", "ssl_ca_location": str(site.ca)}
    with pytest.raises(Retryable, match="SSL has no login; the listener may want one"):
        check(options | {"topic": topic}, patience=0.5)


def test_both_clients_trust_what_the_environment_names(
    site: SecureKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(site.ca))
    assert check(secured(site, topic=topic, ssl_ca_location=None), context(JOB)) == []


def assert_no_secret(error: ExactsinkError | None, caplog: pytest.LogCaptureFixture) -> None:
    for secret in (*PASSWORDS.values(), "wr0ng-Pa55"):
        assert secret not in f"{error}"
        assert secret not in caplog.text


def test_a_marker_that_a_broker_has_lost_needs_a_right_of_its_own(site: SecureKafka, topic: str) -> None:
    nobody = Transaction("shop.orders.g0-0.s1", 2**62, 1)
    wire = Wire(KafkaOptions.model_validate(secured(site, topic=topic)), "marker")
    assert wire.mark(nobody, (topic, 0), 0, commit=True) == 31, "CLUSTER_AUTHORIZATION_FAILED"
    site.allow("writer", "ALTER" if VERSION >= "3.8" else "CLUSTER_ACTION", "BROKER", "kafka-cluster")
    wait_until(lambda: wire.mark(nobody, (topic, 0), 0, commit=True) == 0, "the grant")
    wire.close()
