"""The commands that fix a cluster, as its administrator would type them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from exactsink_kafka.options import KafkaOptions

__all__ = ["Remedies", "duration"]


@dataclass(frozen=True, slots=True)
class Remedies:
    """Which cluster to fix, and for whom."""

    servers: str
    principal: str
    secured: bool

    @classmethod
    def of(cls, options: KafkaOptions) -> Remedies:
        """Take them from the options. Who logs in by certificate is known to the broker alone."""
        certified = options.ssl_certificate_location is not None
        user = options.sasl_username or ("CN=..." if certified else "ANONYMOUS")
        return cls(options.bootstrap_servers, f"User:{user}", options.security_protocol != "PLAINTEXT")

    def command(self, tool: str, *words: str) -> str:
        """Write a command of Kafka's own tools; a secured cluster wants an administrator's login in a file."""
        login = ["--command-config", "admin.properties"] if self.secured else []
        return shlex.join([f"{tool}.sh", "--bootstrap-server", self.servers, *login, *words])

    def topic_config(self, topic: str, setting: str) -> str:
        words = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", setting)
        return self.command("kafka-configs", *words)

    def topic_replicas(self, topic: str) -> str:
        """More copies are an assignment of every partition, which no single option makes."""
        words = ("--reassignment-json-file", "copies.json", "--execute")
        return (
            self.command("kafka-reassign-partitions", *words) + f" (copies.json: three brokers a partition of {topic})"
        )

    def acl(self, operations: Iterable[str], *resource: str) -> str:
        """`resource` as the tool has it: "--topic", "orders"."""
        wanted = [word for operation in operations for word in ("--operation", operation)]
        return self.command("kafka-acls", "--add", "--allow-principal", self.principal, *wanted, *resource)


def duration(seconds: float) -> str:
    """Write a time span in the unit that people would."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
