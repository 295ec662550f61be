"""Connect to a cluster as the tasks will, and explain a failure: the network, TLS or the login.

If librdkafka's errors leave the cause open, a TLS probe finds it. Only a certain cause is Fatal.
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as NoAnswerYet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from exactsink.contract import ConfigError, Fatal, Retryable
from exactsink.toolkit.waiting import attempts_within
from exactsink_kafka.options import KafkaOptions, librdkafka_settings, producer_settings
from exactsink_kafka.producer import refused_settings

__all__ = ["check_settings", "connected"]

_PROBE_SECONDS = 3.0
_WRONG_NAME = frozenset({62, 63, 64})  # OpenSSL's X509_V_ERR_HOSTNAME_, EMAIL_ and IP_ADDRESS_MISMATCH
_ASK_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions, version 0, as request 1 of a nameless client: a listener without TLS answers it before any login."""


def check_settings(options: KafkaOptions, client_id: str) -> None:
    """Check the settings and the PEM files with both clients' libraries, without connecting. Raises ConfigError."""
    if options.security_protocol.endswith("SSL"):
        _tls_context(options)
    _client(producer_settings(options, client_id, client_id))


def connected(options: KafkaOptions, client_id: str, patience_seconds: float) -> AdminClient:
    """Return a client that the cluster has answered.

    Raises Fatal if another try can't help (TLS, the login), Retryable if no broker answers for `patience_seconds`.
    """
    heard: list[KafkaError] = []
    client = _client(librdkafka_settings(options, client_id) | {"error_cb": heard.append})
    answer = client.describe_cluster(request_timeout=patience_seconds)
    for _ in attempts_within(patience_seconds, first_seconds=0.01, longest_seconds=0.01):
        client.poll(0.05)
        down = any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in heard)
        if answer.done() or down:
            break
    if down and (cause := _cause(options, heard, patience_seconds)) is not None:
        raise cause
    try:
        answer.result(patience_seconds)
    except (KafkaException, NoAnswerYet) as error:
        client.poll(0)
        raise _cause(options, heard, patience_seconds) or _unanswered(options, heard) from error
    return client


def _client(given: Mapping[str, Any]) -> AdminClient:
    """Make a client, which checks all settings. Raises ConfigError, in which no value of a setting appears."""
    try:  # its log is silent, because the same failures come as errors
        return AdminClient(dict(given), logger=logging.Logger("librdkafka", logging.CRITICAL + 1))
    except (KafkaException, TypeError, ValueError, AttributeError) as error:
        why = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    raise refused_settings("producer", why, map(str, given.values()))


def _cause(options: KafkaOptions, heard: Sequence[KafkaError], patience_seconds: float) -> Fatal | None:
    """Return a cause that will certainly not go away by itself; None if no such cause is found."""
    probe = _tls if options.security_protocol.endswith("SSL") else _plain
    for server in options.bootstrap_servers.split(","):
        with suppress(OSError):  # unreachable, or busy
            if (found := probe(options, server, min(_PROBE_SECONDS, patience_seconds))) is not None:
                return _fatal(options, *found)
    for error in heard:
        said = _said(error)
        if error.code() == KafkaError._AUTHENTICATION and "authentication error" in said:
            who = f"{options.sasl_username!r} by {options.sasl_mechanism}"
            why = f"the broker refused to log in {who}: wrong user or password"
            return _fatal(options, why, "fix sasl_username or sasl_password in the sink's options")
        if error.code() == KafkaError._AUTHENTICATION and "supported mechanisms:" in said:
            return _unknown_mechanism(options, said.rsplit("supported mechanisms:", 1)[1].strip())
        if error.code() == KafkaError._SSL and "certificate" in said:  # Python's TLS accepted it
            fix = "fix ssl_ca_location; or ssl_certificate_location and ssl_key_location, if brokers require them"
            return _fatal(options, said, fix)
    return None


def _unknown_mechanism(options: KafkaOptions, offered: str) -> Fatal:
    if offered:
        why = f"the broker does not offer {options.sasl_mechanism}, only {offered}"
        return _fatal(options, why, "fix sasl_mechanism in the sink's options")
    protocol, bare = options.security_protocol, options.security_protocol.removeprefix("SASL_")
    why = f"the listener wants no login, {protocol} would log in {options.sasl_username!r} by {options.sasl_mechanism}"
    fix = f"security_protocol = \"{bare}\" and no sasl_* in the sink's options; or name another listener's port"
    return _fatal(options, why, fix)


def _unanswered(options: KafkaOptions, heard: Sequence[KafkaError]) -> Retryable:
    """Return that no broker answered, with the errors that librdkafka reported."""
    said = dict.fromkeys(_said(error) for error in heard if error.code() != KafkaError._ALL_BROKERS_DOWN)
    why = "; ".join([*said][:3]) or "no broker answers"
    if options.sasl_mechanism is None and not said:
        why += f"; {options.security_protocol} has no login; the listener may want one"
    fix = "check that the brokers run, or correct bootstrap_servers"
    return Retryable(f"can't reach Kafka at {options.bootstrap_servers}", why=why, next=fix)


def _fatal(options: KafkaOptions, why: str, fix: str) -> Fatal:
    return Fatal(f"can't reach Kafka at {options.bootstrap_servers}", why=why, next=fix)


def _said(error: KafkaError) -> str:
    """Return librdkafka's text of an error, without the part that changes with every try."""
    return error.str().split(" (after")[0]


# TLS probes: each returns the fault of a server's port and its fix, or None. OSError: the server can't be reached.


def _tls(options: KafkaOptions, server: str, seconds: float) -> tuple[str, str] | None:
    try:
        with _socket(server, seconds) as bare, _tls_context(options).wrap_socket(bare, server_hostname=_host(server)):
            return None
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _WRONG_NAME:
            why = f"the certificate of {server} is for another name ({error.verify_message})"
            return why, "name the broker as its certificate does, in bootstrap_servers"
        authority = options.ssl_ca_location
        trusted = f"ssl_ca_location ({authority})" if authority else "the system's certificates"
        why = f"the certificate of {server} is not trusted by {trusted}: {error.verify_message}"
        return why, "set ssl_ca_location to the PEM file of the authority that signed it"
    except (ssl.SSLError, ConnectionResetError):
        with _socket(server, seconds) as bare:
            bare.sendall(_ASK_VERSIONS)
            head = bare.recv(8, socket.MSG_WAITALL)
        if len(head) < 8 or struct.unpack(">ii", head)[1] != 1:  # the answer names the request's number
            return None  # for example a broker that shuts down, or a balancer before one
    fix = "SASL_PLAINTEXT" if options.sasl_mechanism else "PLAINTEXT"
    why = f"{server} has no TLS, security_protocol is {options.security_protocol}"
    return why, f'name the port of a listener with TLS; or security_protocol = "{fix}" in the sink\'s options'


def _plain(options: KafkaOptions, server: str, seconds: float) -> tuple[str, str]:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE  # is this TLS at all? Nothing is sent
    with _socket(server, seconds) as bare, trusting.wrap_socket(bare, server_hostname=_host(server)):
        fix = "SASL_SSL" if options.sasl_mechanism else "SSL"
    why = f"{server} expects TLS, security_protocol is {options.security_protocol}"
    return why, f'security_protocol = "{fix}" in the sink\'s options; or name the port of a listener without TLS'


def _tls_context(options: KafkaOptions) -> ssl.SSLContext:
    """Make a TLS context from the files on this machine. Raises ConfigError with the path of a bad file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.ssl_check_hostname
    if options.ssl_ca_location is None:
        context.load_default_certs()
    else:
        with _reading("ssl_ca_location", options.ssl_ca_location):
            context.load_verify_locations(options.ssl_ca_location)
    certificate, key = options.ssl_certificate_location, options.ssl_key_location
    if certificate is not None and key is not None:
        password = "" if options.ssl_key_password is None else options.ssl_key_password.get_secret_value()
        with _reading("ssl_certificate_location", certificate):
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
        with _reading("ssl_key_location", key):
            context.load_cert_chain(certificate, key, password)
    return context


@contextmanager
def _reading(option: str, path: str) -> Iterator[None]:
    """Raise ConfigError if the file of an option can't be read or used."""
    fix = "name a PEM file that is on the driver and on every executor"
    try:
        Path(path).read_bytes()
        yield
    except ssl.SSLError:
        why = "the key fits neither the certificate nor ssl_key_password" if "key" in option else "it is not a PEM file"
        raise ConfigError(f"{option}: {path} can't be used", why=why, next=fix) from None
    except OSError as error:
        raise ConfigError(f"{option}: {path} can't be read", why=str(error.strerror), next=fix) from None


def _socket(server: str, seconds: float) -> socket.socket:
    return socket.create_connection((_host(server), int(server.rsplit(":", 1)[1])), seconds)


def _host(server: str) -> str:
    return server.rsplit(":", 1)[0].strip("[]")
