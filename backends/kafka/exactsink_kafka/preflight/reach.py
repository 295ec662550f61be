"""Reach a cluster as the tasks will, and say why when it can't be reached: the network, TLS or the login."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as NoAnswerYet
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from exactsink.contract import ConfigError, Fatal, Retryable
from exactsink_kafka.clients import Connection
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight.doors import Doors, tls_context
from exactsink_kafka.producers.settings import settings

__all__ = ["check_settings", "reached"]

_LOOK_SECONDS = 0.05
_KNOCK_SECONDS = 3.0


def check_settings(options: KafkaOptions, client_id: str) -> None:
    """Let both clients' libraries take the settings and read the PEM files; nothing connects. Raises ConfigError."""
    connection = options.connection
    if connection.protocol.endswith("SSL"):
        tls_context(connection)
    _made(settings(options, client_id, client_id))


def reached(connection: Connection, client_id: str, patience_seconds: float) -> AdminClient:
    """Return a client of a cluster that has answered it.

    Raises Fatal when trying again alone can't help (TLS, the login), Retryable when the brokers don't answer.
    """
    doors = Doors(f"reach Kafka at {connection.servers}", connection, min(_KNOCK_SECONDS, patience_seconds))
    reported: list[KafkaError] = []
    client = _made(connection.librdkafka(client_id) | {"error_cb": reported.append})
    answer = client.describe_cluster(request_timeout=patience_seconds)
    deadline, looked = time.monotonic() + patience_seconds, False
    while not answer.done() and time.monotonic() < deadline:
        client.poll(_LOOK_SECONDS)
        if not looked and any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in reported):
            looked = True
            if (cause := _cause(doors, reported)) is not None:
                raise cause
    try:
        answer.result(_LOOK_SECONDS)
    except (KafkaException, NoAnswerYet) as error:
        client.poll(0)
        raise _cause(doors, reported) or _unanswered(doors, reported) from error
    return client


def _made(given: Mapping[str, Any]) -> AdminClient:
    """Make a client: it looks at all settings, and begins nothing. Raises ConfigError that repeats no value."""
    try:  # what it would log comes back as errors, which are reported once
        return AdminClient(dict(given), logger=logging.Logger("librdkafka", logging.CRITICAL + 1))
    except KafkaException as error:
        why = _without_values(error.args[0].str(), given)
    except (TypeError, ValueError, AttributeError) as error:
        why = _without_values(str(error), given)
    raise ConfigError(
        "producer: librdkafka does not take these settings", why=why, next="fix them in the sink's options"
    )


def _without_values(said: str, given: Mapping[str, Any]) -> str:
    for value in sorted((str(value) for value in given.values()), key=len, reverse=True):
        said = said.replace(f'"{value}"', '"..."') if value else said
    return said


def _cause(doors: Doors, reported: Sequence[KafkaError]) -> Fatal | None:
    """Return what will not fix itself; None when nothing is found that is certain not to."""
    if (refusal := doors.refusal()) is not None:
        return refusal
    for error in reported:
        said = _said(error)
        if error.code() == KafkaError._AUTHENTICATION and "authentication error" in said:
            who = f"{doors.connection.username!r} by {doors.connection.mechanism}"
            why = f"the broker refused to log in {who}: wrong user or password"
            return Fatal(doors.doing, why=why, next="fix sasl_username or sasl_password in the sink's options")
        if error.code() == KafkaError._AUTHENTICATION and "supported mechanisms:" in said:
            return _unknown_mechanism(doors, said.rsplit("supported mechanisms:", 1)[1].strip())
        if error.code() == KafkaError._SSL and "certificate" in said:  # Python's TLS was content
            fix = "fix ssl_ca_location; or ssl_certificate_location and ssl_key_location, where brokers want them"
            return Fatal(doors.doing, why=said, next=fix)
    return None


def _unknown_mechanism(doors: Doors, offered: str) -> Fatal:
    asked = doors.connection
    if offered:
        why = f"the broker does not offer {asked.mechanism}, only {offered}"
        return Fatal(doors.doing, why=why, next="fix sasl_mechanism in the sink's options")
    why = f"the listener wants no login, {asked.protocol} would log in {asked.username!r} by {asked.mechanism}"
    bare = asked.protocol.removeprefix("SASL_")
    fix = f"security_protocol = \"{bare}\" and no sasl_* in the sink's options; or name another listener's port"
    return Fatal(doors.doing, why=why, next=fix)


def _unanswered(doors: Doors, reported: Sequence[KafkaError]) -> Retryable:
    """Name what the servers did, as far as anybody reported."""
    said = dict.fromkeys(_said(error) for error in reported if error.code() != KafkaError._ALL_BROKERS_DOWN)
    why = "; ".join([*said][:3]) or "no broker answers"
    if doors.connection.mechanism is None and not said and doors.opens():
        protocol = doors.connection.protocol
        why = f"a broker takes the connection and does not answer: {protocol} has no login, perhaps it wants one"
    fix = "see that the brokers run, and fix bootstrap_servers if they are elsewhere"
    return Retryable(doors.doing, why=why, next=fix)


def _said(error: KafkaError) -> str:
    """Return what librdkafka says of an error, without what changes from one try to the next."""
    return error.str().split(" (after")[0]
