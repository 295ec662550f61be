"""One description of a connection, in the words of the two clients: librdkafka writes, kafka-python asks and ends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

__all__ = ["Connection"]


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster. A value that pickles; secrets show in neither repr nor errors."""

    servers: str
    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: SecretStr | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: SecretStr | None = None
    check_hostname: bool = True

    def librdkafka(self, client_id: str) -> dict[str, Any]:
        """Return librdkafka's settings, with the secrets, for the process that connects with them."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "client.id": client_id,
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": _reported(self.password),
        }
        if self.protocol.endswith("SSL"):
            settings |= {
                "ssl.ca.location": self.ca or _system_certificates(),
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.key,
                "ssl.key.password": _reported(self.key_password),
                "ssl.endpoint.identification.algorithm": "https" if self.check_hostname else "none",
            }
        return {name: value for name, value in settings.items() if value is not None}

    def kafka_python(self, client_id: str) -> dict[str, Any]:
        """Return kafka-python's settings, with the secrets, which it can't log by accident."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.servers.split(","),
            "client_id": client_id,
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": _Hidden.of(self.password),
        }
        if self.protocol.endswith("SSL"):
            settings |= {
                "ssl_cafile": self.ca,
                "ssl_certfile": self.certificate,
                "ssl_keyfile": self.key,
                "ssl_password": _Hidden.of(self.key_password) or "",  # None would ask at the terminal
                "ssl_check_hostname": self.check_hostname,
            }
        return {name: value for name, value in settings.items() if value is not None}


class _Hidden(str):
    """A secret that its repr does not report: kafka-python logs its settings whole, at level DEBUG."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"

    @classmethod
    def of(cls, secret: SecretStr | None) -> _Hidden | None:
        return None if secret is None else cls(secret.get_secret_value())


def _system_certificates() -> str:
    """Return where librdkafka finds what the system trusts: as Python does, the environment first.

    confluent-kafka's wheels hold an OpenSSL of their own, which looks at no variable by itself; `probe` tries the
    folders of the usual systems.
    """
    return os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR") or "probe"


def _reported(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
