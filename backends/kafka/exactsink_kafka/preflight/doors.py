"""Knock at brokers' ports: do they talk TLS, as which name, trusted by whom. Only what is certain is reported."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from exactsink.contract import ConfigError, Fatal
from exactsink_kafka.clients import Connection

__all__ = ["Doors", "tls_context"]

_WRONG_NAME = frozenset({62, 63, 64})  # OpenSSL's X509_V_ERR_HOSTNAME_, EMAIL_ and IP_ADDRESS_MISMATCH
_ASK_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions, version 0, as request 1 of a nameless client: a listener without TLS answers it before any login."""


@dataclass(frozen=True, slots=True)
class Doors:
    """The brokers to ask first, and how long to wait at each."""

    doing: str
    connection: Connection
    seconds: float

    def refusal(self) -> Fatal | None:
        """Return which broker's port is not as the options say; an unreachable or busy one is left out."""
        look = self._tls if self.connection.protocol.endswith("SSL") else self._plain
        for server in self.connection.servers.split(","):
            with suppress(OSError):
                if (found := look(server)) is not None:
                    return found
        return None

    def opens(self) -> bool:
        """Return whether any broker takes a connection."""
        for server in self.connection.servers.split(","):
            with suppress(OSError), self._connected(server):
                return True
        return False

    def _tls(self, server: str) -> Fatal | None:
        context = tls_context(self.connection)
        try:
            with self._connected(server) as bare, context.wrap_socket(bare, server_hostname=_host(server)):
                return None
        except ssl.SSLCertVerificationError as error:
            return self._untrusted(server, error)
        except (ssl.SSLError, ConnectionResetError):
            if not self._answers_bare(server):
                return None  # a broker that is going down, say, or a balancer before one
        reported = "SASL_PLAINTEXT" if self.connection.mechanism else "PLAINTEXT"
        why = f"{server} talks no TLS, security_protocol is {self.connection.protocol}"
        fix = f'name the port of a listener with TLS; or security_protocol = "{reported}" in the sink\'s options'
        return Fatal(self.doing, why=why, next=fix)

    def _answers_bare(self, server: str) -> bool:
        """Ask for versions without TLS. The answer names the request's number."""
        with self._connected(server) as bare:
            bare.sendall(_ASK_VERSIONS)
            head = bare.recv(8, socket.MSG_WAITALL)
            return len(head) == 8 and struct.unpack(">ii", head)[1] == 1

    def _plain(self, server: str) -> Fatal | None:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE  # is this TLS at all? Nothing is sent
        with self._connected(server) as bare, trusting.wrap_socket(bare, server_hostname=_host(server)):
            reported = "SASL_SSL" if self.connection.mechanism else "SSL"
        why = f"{server} talks TLS, security_protocol is {self.connection.protocol}"
        fix = f'security_protocol = "{reported}" in the sink\'s options; or name the port of a listener without TLS'
        return Fatal(self.doing, why=why, next=fix)

    def _untrusted(self, server: str, error: ssl.SSLCertVerificationError) -> Fatal:
        if error.verify_code in _WRONG_NAME:
            why = f"the certificate of {server} is for another name ({error.verify_message})"
            return Fatal(self.doing, why=why, next="name the broker as its certificate does, in bootstrap_servers")
        ca = self.connection.ca
        trusted = f"ssl_ca_location ({ca})" if ca else "what the system trusts"
        why = f"the certificate of {server} is not trusted by {trusted}: {error.verify_message}"
        return Fatal(self.doing, why=why, next="ssl_ca_location = the PEM file of the authority that signed it")

    def _connected(self, server: str) -> socket.socket:
        return socket.create_connection((_host(server), int(server.rsplit(":", 1)[1])), self.seconds)


def tls_context(connection: Connection) -> ssl.SSLContext:
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
    """Return which option's file could not be read, and why."""
    fix = "name a PEM file that is on the driver and on every executor"
    try:
        with Path(path).open("rb"):
            pass
        yield
    except ssl.SSLError:
        why = "the key fits neither the certificate nor ssl_key_password" if "key" in option else "it is no PEM file"
        raise ConfigError(f"{option}: {path} can't be used", why=why, next=fix) from None
    except OSError as error:
        raise ConfigError(f"{option}: {path} can't be read", why=str(error.strerror), next=fix) from None


def _host(server: str) -> str:
    return server.rsplit(":", 1)[0].strip("[]")
