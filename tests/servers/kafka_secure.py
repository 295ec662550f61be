"""A Kafka broker with TLS, passwords and access rules. It refuses operations that a user was not allowed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.servers.certificates import make_authority, make_certificate
from tests.servers.kafka import KafkaServer
from tests.servers.waiting import wait_until

PASSWORDS: Mapping[str, str] = {"writer": "s3cr3t-Pa55", "reader": "an0ther-Pa55"}  # both by SCRAM and by PLAIN
_LISTENER = "SECURE"
_MODULES = "org.apache.kafka.common.security"
_ANSWER = 30  # seconds


@dataclass(frozen=True)
class SecureKafka:
    """A broker with a SASL_SSL listener. `ca` signed its certificate, `wrong_ca` did not.

    No user may do anything before `allow`. `server` is the same broker through its plain listener, which allows all.
    """

    server: KafkaServer
    ca: Path
    wrong_ca: Path

    @property
    def bootstrap(self) -> str:
        """Return the secured listener's host:port. The certificate is for 127.0.0.1 and localhost."""
        return self.server.address(_LISTENER)

    def allow(self, user: str, operation: str, kind: str, name: str, *, prefix: bool = False) -> None:
        """Allow a user an operation (WRITE, DESCRIBE, ...) on a TOPIC, GROUP, TRANSACTIONAL_ID or BROKER of that name.

        In effect when this returns. `prefix`: on all names that begin so. The cluster's own name is kafka-cluster.
        """
        pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        rule = (
            ResourceType[kind],
            name,
            pattern,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        admin = self.server.admin()
        admin.create_acls([AclBinding(*rule)])[AclBinding(*rule)].result(_ANSWER)
        wait_until(
            lambda: bool(admin.describe_acls(AclBindingFilter(*rule)).result(_ANSWER)),
            f"{user} to be allowed {operation}",
        )


@contextmanager
def secure_kafka(settings: Mapping[str, str] | None = None) -> Iterator[SecureKafka]:
    """Start a broker for one owner. It takes some seconds to make."""
    with tempfile.TemporaryDirectory(prefix="exactsink-kafka-keys-") as folder:
        keys = Path(folder)
        authority, foreign = make_authority(keys / "ca"), make_authority(keys / "wrong")
        certificate = make_certificate(authority, keys / "server")
        keystore = keys / "server.pem"
        keystore.write_text(certificate.with_suffix(".key").read_text() + certificate.read_text())
        credentials = [
            f"--add-scram=SCRAM-SHA-512=[name={user},password={password}]" for user, password in PASSWORDS.items()
        ]
        secured = {**_secured(keystore), **(settings or {})}
        server = KafkaServer(secured, listeners={_LISTENER: "SASL_SSL"}, formatting=credentials)
        try:
            server.start()
            yield SecureKafka(server, authority, foreign)
        finally:
            server.remove()


def _secured(keystore: Path) -> dict[str, str]:
    listener = f"listener.name.{_LISTENER.lower()}"
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{listener}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {users};",
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.location": str(keystore),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # clients of the plain listeners: this server itself, and its tests
    }
