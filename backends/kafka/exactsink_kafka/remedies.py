"""The commands by which an administrator fixes a cluster, for findings and errors."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from exactsink_kafka.options import KafkaOptions

__all__ = ["BATCH_BYTES", "Remedies", "duration", "kept_seconds"]

BATCH_BYTES = 64
"""The bytes of a batch of one record beyond those that librdkafka counts."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """Fixes for the cluster and the user of a sink's options."""

    options: KafkaOptions

    @property
    def principal(self) -> str:
        """Name the sink's user as Kafka's access rules do. Only the broker knows the name in a certificate."""
        certified = self.options.ssl_certificate_location is not None
        return f"User:{self.options.sasl_username or ('CN=...' if certified else 'ANONYMOUS')}"

    def command(self, tool: str, *words: str) -> str:
        """Return a command of Kafka's own tools. For a secured cluster, a file has the administrator's login."""
        login = [] if self.options.security_protocol == "PLAINTEXT" else ["--command-config", "admin.properties"]
        return shlex.join([f"{tool}.sh", "--bootstrap-server", self.options.bootstrap_servers, *login, *words])

    def make_topic(self, topic: str, brokers: int | None = None) -> str:
        """Return the command that makes the sink's topic. `brokers` limits the copies; None: the cluster chooses."""
        copies = () if brokers is None else ("--replication-factor", str(min(brokers, 3)))
        safe = ("--config", "min.insync.replicas=2") if brokers is not None and brokers > 2 else ()
        return self.command("kafka-topics", "--create", "--topic", topic, "--partitions", "6", *copies, *safe)

    def set_topic(self, topic: str, setting: str) -> str:
        words = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", setting)
        return self.command("kafka-configs", *words)

    def copy_topic(self, topic: str) -> str:
        """Return the command that adds copies: it assigns every partition, because no setting adds copies."""
        made = self.command("kafka-reassign-partitions", "--reassignment-json-file", "copies.json", "--execute")
        return f"{made} (copies.json: three brokers a partition of {topic})"

    def show_partitions(self, which: str, *topic: str) -> str:
        """Return the command that lists partitions. `which`: unavailable or under-min-isr."""
        return self.command("kafka-topics", "--describe", *topic, f"--{which}-partitions")

    def allow(self, operations: str, *resource: str) -> str:
        """Return the command that grants operations, separated by blanks. `resource`: the tool's own words."""
        wanted = [word for operation in operations.split() for word in ("--operation", operation)]
        return self.command("kafka-acls", "--add", "--allow-principal", self.principal, *wanted, *resource)

    def allow_ids(self, prefix: str) -> str:
        """Return the command that grants the transactional ids with a prefix."""
        return self.allow("Write Describe", "--transactional-id", prefix, "--resource-pattern-type", "prefixed")

    def allow_writing(self, topic: str) -> str:
        return f"{self.allow('Write Describe', '--topic', topic)}; {self.allow_ids('JOB.SINK.')}"

    def show_or_make_topic(self, topic: str) -> str:
        shown = self.allow("Describe", "--topic", topic)
        return f"{self.make_topic(topic)}; or fix the name; if the topic exists, {shown}"

    def add_partitions(self, topic: str) -> str:
        more = self.command("kafka-topics", "--alter", "--topic", topic, "--partitions", "N")
        return f"fix the column `partition`, or add partitions: {more}"

    def take_larger_records(self, topic: str, *, by_broker: bool) -> str:
        """Return how to let such rows in. A broker compares whole batches, which have at most `message.max.bytes`."""
        most, setting = self.options.record_limit
        if by_broker:
            theirs = self.set_topic(topic, f"max.message.bytes={most + BATCH_BYTES}")
            mine = f'producer = {{"message.max.bytes" = N}} of the sink, N the topic\'s limit less {BATCH_BYTES}'
            return f"{theirs}; or, if no single row is too large, {mine}; or make rows smaller"
        mine = f'producer = {{"{setting}" = N}} of the sink, which takes {most} bytes now'
        return f"{self.set_topic(topic, 'max.message.bytes=N')}, and {mine}; or make rows smaller"

    def set_clock(self, topic: str) -> str:
        now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        theirs = self.set_topic(topic, "message.timestamp.after.max.ms=N")
        return f"set this executor's clock right, now {now}; or fix the rows' column `timestamp`, if any; or {theirs}"

    def take_such_records(self, topic: str) -> str:
        return f"fix the rows (a compacted topic takes none without a key), or the settings of topic {topic}"

    def keep_transactions(self, topic: str) -> str:
        return "lower transaction_timeout_seconds, or raise transaction.max.timeout.ms of the brokers"

    def abort_in(self, topic: str, partition: int, offset: int) -> str:
        """Return the command that aborts a transaction in one partition only, without its coordinator."""
        words = ("--topic", topic, "--partition", str(partition), "--start-offset", str(offset))
        return self.command("kafka-transactions", "abort", *words)

    def set_brokers(self, setting: str, seconds: float) -> str:
        """Return how to set a duration (seconds) that brokers read when they start."""
        return f"{setting}={int(seconds * 1000)} in every broker's server.properties, then restart them one by one"


def duration(seconds: float) -> str:
    """Write a time span in a unit that reads well."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def kept_seconds(configs: Mapping[str, str] | None) -> float:
    """Return how many seconds a topic surely keeps a record: 0 if compaction or a limit by size may delete it."""
    if configs is None or "compact" in configs["cleanup.policy"]:
        return 0.0
    size, milliseconds = int(configs["retention.bytes"]), int(configs["retention.ms"])
    if "delete" not in configs["cleanup.policy"] or (size < 0 and milliseconds < 0):
        return float("inf")
    return milliseconds / 1000 if size < 0 else 0.0
