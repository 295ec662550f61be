"""The options of a Kafka sink: refused where they are half or weaken the promise, the same for both clients."""

from __future__ import annotations

import logging
import pickle
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.transport import KafkaSSLTransport
from pydantic import ValidationError
from tests.servers.certificates import make_authority, make_certificate

from exactsink.contract import ConfigError
from exactsink_kafka.connect import check_settings
from exactsink_kafka.options import KafkaOptions, kafka_python_settings, librdkafka_settings

SECRET = "s3cr3t-Pa55"
LOGIN = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "shop", "sasl_password": SECRET}


def made(**given: Any) -> KafkaOptions:
    return KafkaOptions.model_validate({"bootstrap_servers": "kafka-1:9092", "topic": "orders", **given})


def refused(**given: Any) -> str:
    with pytest.raises(ValidationError) as failed:
        made(**given)
    assert SECRET not in str(failed.value)
    return str(failed.value)


SERVERS = {
    " kafka-1:9092 , kafka_2.example.org:19092": "kafka-1:9092,kafka_2.example.org:19092",
    "[::1]:9092,127.0.0.1:9092": "[::1]:9092,127.0.0.1:9092",
    "kafka-1:9092,kafka-1:9092": "kafka-1:9092",
}


@pytest.mark.parametrize("given", SERVERS)
def test_brokers_are_read_as_both_clients_read_them(given: str) -> None:
    connection = made(bootstrap_servers=given)
    assert librdkafka_settings(connection, "me")["bootstrap.servers"] == SERVERS[given]
    assert kafka_python_settings(connection, "me")["bootstrap_servers"] == SERVERS[given].split(",")


NO_SERVERS = "|kafka-1|kafka-1:|:9092|kafka-1:0|kafka-1:65536|SSL://kafka-1:9092|a:1,,b:2|a:1 b:2|a:1,"


@pytest.mark.parametrize("given", NO_SERVERS.split("|"))
def test_what_is_no_list_of_brokers_is_refused(given: str) -> None:
    assert "bootstrap_servers" in refused(bootstrap_servers=given)


@pytest.mark.parametrize("topic", ["", "a b", "ü", ".", "..", "x" * 250, "__consumer_offsets", "__transaction_state"])
def test_a_topic_that_no_user_has_is_refused(topic: str) -> None:
    assert "topic" in refused(topic=topic)


def test_keys_and_topics_fit_the_format() -> None:
    assert "key" in refused(key=["id"])
    assert "topic" in refused(value_format="json", topic=None)
    assert made(value_format="json", key=["id"]).key == ("id",)
    assert made(topic=None).topic is None


OURS = """
acks request.required.acks enable.idempotence enable.gapless.guarantee max.in.flight
max.in.flight.requests.per.connection retries message.send.max.retries transactional.id transaction.timeout.ms
delivery.report.only.error partitioner queuing.strategy bootstrap.servers metadata.broker.list client.id
plugin.library.paths statistics.interval.ms enable.ssl.certificate.verification security.protocol sasl.password
ssl.ca.location ssl_key test.mock.num.brokers error_cb logger
"""


@pytest.mark.parametrize("name", OURS.split())
def test_a_setting_that_the_promise_hangs_on_is_not_for_the_user(name: str) -> None:
    assert f"producer: {name}: " in refused(producer={name: SECRET})


def test_settings_of_speed_pass_to_librdkafka_and_so_does_the_shortest_transaction() -> None:
    check_settings(made(transaction_timeout_seconds=1), "me")
    given = {"compression.type": "zstd", "linger.ms": 50, "batch.size": 1_000_000, "message.timeout.ms": 900_000}
    check_settings(made(producer=given), "me")


TOO_LONG = dict.fromkeys((900001, "900001"), "transaction_timeout_seconds, which is 900")
TOO_LONG |= {0: "no limit", "soon": "not a number"}


@pytest.mark.parametrize("given", TOO_LONG)
def test_no_row_is_tried_for_longer_than_its_transaction_lives(given: Any) -> None:
    for name in ("message.timeout.ms", "delivery.timeout.ms"):
        assert TOO_LONG[given] in refused(producer={name: given})


@pytest.mark.parametrize("left_out", list(LOGIN))
def test_half_a_login_is_refused(left_out: str) -> None:
    half = {name: value for name, value in LOGIN.items() if name != left_out}
    assert "needs sasl_mechanism" in refused(security_protocol="SASL_SSL", **half)


SASL = {"security_protocol": "SASL_SSL", **LOGIN}
UNUSED: dict[str, list[dict[str, Any]]] = {
    "only with security_protocol = SASL_SSL": [LOGIN, {**LOGIN, "security_protocol": "SSL"}],
    "empty": [{**SASL, "sasl_password": ""}, {**SASL, "sasl_username": ""}],
    "ssl_ca_location: only with SSL": [{"ssl_ca_location": "/ca.pem"}],
    "ssl_check_hostname: only": [{**SASL, "security_protocol": "SASL_PLAINTEXT", "ssl_check_hostname": False}],
    "both or none": [{"security_protocol": "SSL", f"ssl_{one}_location": "/x.pem"} for one in ("certificate", "key")],
    "only with ssl_key_location": [{"security_protocol": "SSL", "ssl_key_password": SECRET}],
    "sasl_mechanism": [{**SASL, "sasl_mechanism": "GSSAPI"}],
}


@pytest.mark.parametrize("said", UNUSED)
def test_what_would_be_left_unused_or_half_is_refused(said: str) -> None:
    for given in UNUSED[said]:
        assert said in refused(**given)


def test_one_login_is_reported_to_both_clients_and_shows_nowhere() -> None:
    options = pickle.loads(pickle.dumps(made(security_protocol="SASL_SSL", ssl_ca_location="/ca.pem", **LOGIN)))
    rdkafka, python = librdkafka_settings(options, "me"), kafka_python_settings(options, "me")
    assert (rdkafka["sasl.username"], rdkafka["sasl.password"]) == ("shop", SECRET)
    assert (python["sasl_plain_username"], python["sasl_plain_password"]) == ("shop", SECRET)
    assert (rdkafka["ssl.ca.location"], python["ssl_cafile"]) == ("/ca.pem", "/ca.pem")
    assert (rdkafka["ssl.endpoint.identification.algorithm"], python["ssl_check_hostname"]) == ("https", True)
    unchecked = made(security_protocol="SSL", ssl_check_hostname=False)
    assert librdkafka_settings(unchecked, "me")["ssl.endpoint.identification.algorithm"] == "none"
    assert kafka_python_settings(unchecked, "me")["ssl_check_hostname"] is False
    assert SECRET not in f"{options!r} {options} {options!r} {python!r}"


def test_the_client_that_logs_its_settings_does_not_log_the_password(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python writes all of them at level DEBUG, whatever comes after."""
    options = made(bootstrap_servers="127.0.0.1:1", security_protocol="SASL_PLAINTEXT", **LOGIN)
    with caplog.at_level(logging.DEBUG), pytest.raises(KafkaError):
        KafkaAdminClient(**kafka_python_settings(options, "me"), bootstrap_timeout_ms=1)
    assert "sasl_plain_password" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", ""])
def test_without_an_authority_librdkafka_trusts_what_python_does(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable or "UNRELATED", "/some/ca")
    connection = made(security_protocol="SSL")
    assert librdkafka_settings(connection, "me")["ssl.ca.location"] == ("/some/ca" if variable else "probe")
    assert "ssl_cafile" not in kafka_python_settings(connection, "me")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a client's certificate and key, and the same key under a password."""
    folder = tmp_path_factory.mktemp("keys")
    make_certificate(make_authority(folder / "ca"), folder / "client")
    command = ["openssl", "pkey", "-in", "client.key", "-aes256", "-passout", f"pass:{SECRET}", "-out", "locked.key"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def tls(keys: Path, **given: str) -> KafkaOptions:
    paths = {f"ssl_{name}_location": str(keys / file) for name, file in given.items() if name != "password"}
    password = {"ssl_key_password": given["password"]} if "password" in given else {}
    return made(security_protocol="SSL", **paths, **password)


def made_by_librdkafka(options: KafkaOptions) -> None:
    """Read the files as a producer is made; what it hears of brokers later is not looked at."""
    Producer(librdkafka_settings(options, "me"))


def made_by_kafka_python(options: KafkaOptions) -> None:
    """Read the files as a connection begins, without one."""
    KafkaSSLTransport._build_ssl_context({**KafkaSSLTransport.DEFAULT_CONFIG, **kafka_python_settings(options, "me")})


@pytest.mark.parametrize("given", [{"key": "client.key"}, {"key": "locked.key", "password": SECRET}])
def test_a_client_s_certificate_is_read_by_both_clients(keys: Path, given: dict[str, str]) -> None:
    """A key of somebody else's, or without its password, shows that they read it."""
    for make in (lambda options: check_settings(options, "me"), made_by_librdkafka, made_by_kafka_python):
        make(tls(keys, ca="ca.crt", certificate="client.crt", **given))
    for unfit in ({"key": "ca.key"}, {"key": "locked.key"}, WRONG):
        for make in (made_by_librdkafka, made_by_kafka_python):
            with pytest.raises((KafkaException, ssl.SSLError)):
                make(tls(keys, **{"ca": "ca.crt", "certificate": "client.crt", **unfit}))


WRONG = {"certificate": "client.crt", "key": "locked.key", "password": "wr0ng-Pa55"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ca": "none.crt"}, "ssl_ca_location: .*none.crt can't be read: No such file"),
        ({"ca": "ca.key"}, "ssl_ca_location: .*ca.key can't be used: it is not a PEM file"),
        ({"certificate": "none.crt", "key": "client.key"}, "ssl_certificate_location: .*none.crt can't be read"),
        ({"certificate": "client.key", "key": "client.key"}, "ssl_certificate_location: .*client.key can't be used"),
        ({"certificate": "client.crt", "key": "none.key"}, "ssl_key_location: .*none.key can't be read"),
        ({"certificate": "client.crt", "key": "ca.key"}, "ssl_key_location: .*ca.key can't be used: the key fits"),
        ({"certificate": "client.crt", "key": "locked.key"}, "locked.key can't be used: .*ssl_key_password"),
        (WRONG, "locked.key can't be used: .*ssl_key_password"),
    ],
)
def test_a_file_that_can_not_be_used_is_named_with_its_option(keys: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as failed:
        check_settings(tls(keys, **given), "me")
    assert "Pa55" not in str(failed.value)
