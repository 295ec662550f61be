"""The commands that fix a cluster, as its administrator would type them: all that findings and errors name."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from exactsink_kafka.options import KafkaOptions

__all__ = ["BATCH_BYTES", "Remedies", "duration", "kept_seconds"]

BATCH_BYTES = 64
"""What a batch of one record has beyond the bytes that librdkafka counts."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """Fixes for the cluster and the user of a sink's options."""

    options: KafkaOptions

    @property
    def principal(self) -> str:
        """Name the sink's user as Kafka's access rules do. Who logs in by certificate is known to the broker alone."""
        certified = self.options.ssl_certificate_location is not None
        return f"User:{self.options.sasl_username or ('CN=...' if certified else 'ANONYMOUS')}"

    def command(self, tool: str, *words: str) -> str:
        """Return a command of Kafka's own tools; a secured cluster wants an administrator's login in a file."""
        login = [] if self.options.security_protocol == "PLAINTEXT" else ["--command-config", "admin.properties"]
        return shlex.join([f"{tool}.sh", "--bootstrap-server", self.options.bootstrap_servers, *login, *words])

    def make_topic(self, topic: str, brokers: int | None = None) -> str:
        """Return what makes the sink's topic; `brokers` bound its copies, None leaves them to the cluster."""
        copies = () if brokers is None else ("--replication-factor", str(min(brokers, 3)))
        safe = ("--config", "min.insync.replicas=2") if brokers is not None and brokers > 2 else ()
        return self.command("kafka-topics", "--create", "--topic", topic, "--partitions", "6", *copies, *safe)

    def set_topic(self, topic: str, setting: str) -> str:
        words = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", setting)
        return self.command("kafka-configs", *words)

    def copy_topic(self, topic: str) -> str:
        """More copies are an assignment of every partition, which no single option makes."""
        made = self.command("kafka-reassign-partitions", "--reassignment-json-file", "copies.json", "--execute")
        return f"{made} (copies.json: three brokers a partition of {topic})"

    def show_partitions(self, which: str, *topic: str) -> str:
        """Return what lists partitions: `which` is unavailable or under-min-isr."""
        return self.command("kafka-topics", "--describe", *topic, f"--{which}-partitions")

    def allow(self, operations: str, *resource: str) -> str:
        """Return what grants operations, named with blanks between; `resource` as the tool has it."""
        wanted = [word for operation in operations.split() for word in ("--operation", operation)]
        return self.command("kafka-acls", "--add", "--allow-principal", self.principal, *wanted, *resource)

    def allow_ids(self, prefix: str) -> str:
        """Return what grants the transactional ids that begin so."""
        return self.allow("Write Describe", "--transactional-id", prefix, "--resource-pattern-type", "prefixed")

    def allow_writing(self, topic: str) -> str:
        return f"{self.allow('Write Describe', '--topic', topic)}; {self.allow_ids('JOB.SINK.')}"

    def show_or_make_topic(self, topic: str) -> str:
        shown = self.allow("Describe", "--topic", topic)
        return f"{self.make_topic(topic)}; or fix the name; where it is there, {shown}"

    def add_partitions(self, topic: str) -> str:
        more = self.command("kafka-topics", "--alter", "--topic", topic, "--partitions", "N")
        return f"fix the column `partition`, or add partitions: {more}"

    def take_larger_records(self, topic: str, *, by_broker: bool) -> str:
        """Return what lets such rows in. A broker compares whole batches: none is larger than `message.max.bytes`."""
        most, setting = self.options.record_limit
        if by_broker:
            theirs = self.set_topic(topic, f"max.message.bytes={most + BATCH_BYTES}")
            mine = f'producer = {{"message.max.bytes" = N}} of the sink, N the topic\'s own less {BATCH_BYTES}'
            return f"{theirs}; or, where no row is too large by itself, {mine}; or make rows smaller"
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
        """Return what aborts a transaction in one partition alone, past its coordinator."""
        words = ("--topic", topic, "--partition", str(partition), "--start-offset", str(offset))
        return self.command("kafka-transactions", "abort", *words)

    def set_brokers(self, setting: str, seconds: float) -> str:
        """Return how to set what brokers read at their start; in seconds."""
        return f"{setting}={int(seconds * 1000)} in every broker's server.properties, then restart them one by one"


def duration(seconds: float) -> str:
    """Write a time span in the unit that people would."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def kept_seconds(configs: Mapping[str, str] | None) -> float:
    """Return how long a topic keeps a record for sure. Compaction and a limit by size may take it at any time."""
    if configs is None or "compact" in configs["cleanup.policy"]:
        return 0.0
    size, milliseconds = int(configs["retention.bytes"]), int(configs["retention.ms"])
    if "delete" not in configs["cleanup.policy"] or (size < 0 and milliseconds < 0):
        return float("inf")
    return milliseconds / 1000 if size < 0 else 0.0
