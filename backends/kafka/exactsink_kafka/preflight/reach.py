"""Reach a cluster as the tasks will, and say why when it can't be reached: the network, TLS or the login."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from exactsink.errors import ConfigError, ExactsinkError, Fatal, Retryable
from exactsink_kafka.clients import Connection
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.producers.settings import settings

__all__ = ["check_settings", "reached"]

_LOOK_SECONDS = 0.05
_KNOCK_SECONDS = 3.0
_WRONG_NAME = frozenset({62, 63, 64})  # OpenSSL's X509_V_ERR_HOSTNAME_, EMAIL_ and IP_ADDRESS_MISMATCH


def check_settings(options: KafkaOptions, client_id: str) -> None:
    """Let both clients' libraries take the settings and read the PEM files; nothing connects. Raises ConfigError."""
    connection = options.connection
    if connection.protocol.endswith("SSL"):
        _context(connection)
    _made(settings(options, client_id, client_id))


def reached(connection: Connection, client_id: str, patience_seconds: float) -> AdminClient:
    """Give a client of a cluster that has answered it.

    Raises Fatal when trying again alone can't help (TLS, the login), Retryable when the brokers don't answer.
    """
    doing = f"reach Kafka at {connection.servers}"
    told: list[KafkaError] = []
    client = _made(connection.librdkafka(client_id) | {"error_cb": told.append})
    answer = client.describe_cluster(request_timeout=patience_seconds)
    looked = False
    deadline = time.monotonic() + patience_seconds
    while not answer.done() and time.monotonic() < deadline:
        client.poll(_LOOK_SECONDS)
        down = any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in told)
        if down and not looked:
            looked = True
            if (cause := _cause(doing, connection, told)) is not None:
                raise cause
    try:
        answer.result(_LOOK_SECONDS)
    except (KafkaException, TimeoutError) as error:
        client.poll(0)
        raise _cause(doing, connection, told) or _unanswered(doing, connection, told) from error
    return client


def _made(given: Mapping[str, Any]) -> AdminClient:
    """Make a client: it looks at all settings, and begins nothing. Raises ConfigError that repeats no value."""
    try:  # what it would log comes back as errors, which are told once
        return AdminClient(dict(given), logger=logging.Logger("librdkafka", logging.CRITICAL + 1))
    except KafkaException as error:
        why = _without_values(error.args[0].str(), given)
    except (TypeError, ValueError, AttributeError) as error:
        why = _without_values(str(error), given)
    raise ConfigError(
        "producer: librdkafka does not take these settings", why=why, next="mend them in the sink's options"
    )


def _without_values(said: str, given: Mapping[str, Any]) -> str:
    for value in sorted((str(value) for value in given.values()), key=len, reverse=True):
        said = said.replace(f'"{value}"', '"..."') if value else said
    return said


def _context(connection: Connection) -> ssl.SSLContext:
    """Make what a TLS connection needs, of the files on this machine. Raises ConfigError with the path."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = connection.check_hostname
    if connection.ca is None:
        context.load_default_certs()
    else:
        with _reading("ssl_ca_location", connection.ca):
            context.load_verify_locations(connection.ca)
    if connection.certificate is not None and connection.key is not None:
        password = "" if connection.key_password is None else connection.key_password.get_secret_value()
        with _reading("ssl_certificate_location", connection.certificate):
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(connection.certificate)
        with _reading("ssl_key_location", connection.key):
            context.load_cert_chain(connection.certificate, connection.key, password)
    return context


@contextmanager
def _reading(option: str, path: str) -> Iterator[None]:
    """Say which option's file could not be read, and why."""
    mend = "name a PEM file that is on the driver and on every executor"
    try:
        with Path(path).open("rb"):
            pass
        yield
    except ssl.SSLError:
        why = "the key fits neither the certificate nor ssl_key_password" if "key" in option else "it is no PEM file"
        raise ConfigError(f"{option}: {path} can't be used", why=why, next=mend) from None
    except OSError as error:
        raise ConfigError(f"{option}: {path} can't be read", why=str(error.strerror), next=mend) from None


def _cause(doing: str, connection: Connection, told: list[KafkaError]) -> ExactsinkError | None:
    """Say what will not mend itself; None when nothing of the kind is found."""
    for server in connection.servers.split(","):
        if (cause := _knocked(doing, connection, server)) is not None:
            return cause
    for error in told:
        if error.code() == KafkaError._AUTHENTICATION:
            return _login_refused(doing, connection, error.str())
        if error.code() == KafkaError._SSL:  # this machine's Python trusts the broker, librdkafka does not
            return Fatal(
                doing,
                why=_said(error),
                next="mend ssl_ca_location; or ssl_certificate_location and ssl_key_location, where brokers want them",
            )
    return None


def _login_refused(doing: str, connection: Connection, said: str) -> Fatal:
    who = f"{connection.username!r} by {connection.mechanism}"
    if "supported mechanisms" not in said:
        why = f"the broker refused to log in {who}: wrong user or password"
        return Fatal(doing, why=why, next="mend sasl_username or sasl_password in the sink's options")
    offered = said.rsplit("supported mechanisms:", 1)[1].split("(after")[0].strip()
    if not offered:
        why = f"the listener wants no login, {connection.protocol} would log in {who}"
        plain = "SSL" if connection.protocol == "SASL_SSL" else "PLAINTEXT"
        return Fatal(doing, why=why, next=f'security_protocol = "{plain}" in the sink\'s options, or another port')
    why = f"the broker does not offer {connection.mechanism}, only {offered}"
    return Fatal(doing, why=why, next="mend sasl_mechanism in the sink's options")


def _knocked(doing: str, connection: Connection, server: str) -> Fatal | None:
    """Look whether a broker's port talks TLS as the options say. A broker that can't be reached tells nothing."""
    with suppress(OSError):
        if not connection.protocol.endswith("SSL"):
            return _knocked_plain(doing, connection, server)
        try:
            with _connected(server) as plain, _context(connection).wrap_socket(plain, server_hostname=_host(server)):
                return None
        except ssl.SSLCertVerificationError as error:
            return _untrusted(doing, connection, server, error)
        except (ssl.SSLError, ConnectionResetError, TimeoutError) as error:
            bare = "SASL_PLAINTEXT" if connection.mechanism else "PLAINTEXT"
            why = f"{server} does not talk TLS there ({error.__class__.__name__}), security_protocol wants it"
            return Fatal(doing, why=why, next=f'name the port of a TLS listener, or security_protocol = "{bare}"')
    return None


def _knocked_plain(doing: str, connection: Connection, server: str) -> Fatal | None:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE  # only: is this TLS? Nothing is sent
    with (
        suppress(ssl.SSLError, ConnectionResetError, TimeoutError),
        _connected(server) as plain,
        trusting.wrap_socket(plain, server_hostname=_host(server)),
    ):
        secure = "SASL_SSL" if connection.mechanism else "SSL"
        why = f"{server} talks TLS, security_protocol is {connection.protocol}"
        mend = f'security_protocol = "{secure}" in the sink\'s options, or the port of a listener without TLS'
        return Fatal(doing, why=why, next=mend)
    return None


def _untrusted(doing: str, connection: Connection, server: str, error: ssl.SSLCertVerificationError) -> Fatal:
    if error.verify_code in _WRONG_NAME:
        why = f"the certificate of {server} is for another name ({error.verify_message})"
        return Fatal(doing, why=why, next="name the broker as its certificate does, in bootstrap_servers")
    trusted = f"ssl_ca_location ({connection.ca})" if connection.ca else "what the system trusts"
    why = f"the certificate of {server} is not signed by {trusted}: {error.verify_message}"
    return Fatal(doing, why=why, next="ssl_ca_location = the PEM file of the authority that signed it")


def _unanswered(doing: str, connection: Connection, told: list[KafkaError]) -> Retryable:
    """Name what each server did, as far as anybody told."""
    said = dict.fromkeys(_said(error) for error in told if error.code() != KafkaError._ALL_BROKERS_DOWN)
    why = "; ".join([*said][:3]) or "no broker answers"
    if connection.protocol in ("SSL", "PLAINTEXT") and not said and any(_knocks(connection.servers)):
        why = f"a broker takes the connection and closes it: {connection.protocol} has no login, perhaps it wants one"
    return Retryable(doing, why=why, next="see that the brokers run, and mend bootstrap_servers if they are elsewhere")


def _said(error: KafkaError) -> str:
    """Give what librdkafka says of an error, without what changes from one try to the next."""
    return error.str().split(" (after")[0]


def _knocks(servers: str) -> Iterator[bool]:
    for server in servers.split(","):
        with suppress(OSError), _connected(server):
            yield True


def _connected(server: str) -> socket.socket:
    return socket.create_connection((_host(server), int(server.rsplit(":", 1)[1])), _KNOCK_SECONDS)


def _host(server: str) -> str:
    return server.rsplit(":", 1)[0].strip("[]")
