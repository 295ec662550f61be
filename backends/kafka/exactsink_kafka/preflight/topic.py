"""Whether a topic keeps what is written to it, takes such rows, and can prove later what was committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight.facts import TopicFacts
from exactsink_kafka.preflight.remedies import Remedies, duration

__all__ = ["copies_findings", "partition_findings", "rows_findings"]

_LIBRDKAFKA_LARGEST = 1_000_000  # message.max.bytes where the options don't say
_FOR_EVER = 2**63 - 1
_BROKERS_AHEAD_MS = 3_600_000  # message.timestamp.after.max.ms where nobody says


def partition_findings(topic: TopicFacts, min_insync: int, remedies: Remedies) -> Iterator[Finding]:
    """Find what keeps rows from being written now, or at all."""
    if topic.leaderless:
        which = ", ".join(str(partition) for partition in topic.leaderless)
        message = (
            f"topic {topic.name}: {len(topic.leaderless)} of {topic.partitions} partitions have no leader ({which})"
        )
        words = ("--describe", "--topic", topic.name, "--unavailable-partitions")
        yield Finding("error", message, f"start the brokers that hold them: {remedies.command('kafka-topics', *words)}")
    if min_insync > topic.replicas:
        message = (
            f"topic {topic.name}: min.insync.replicas is {min_insync}, a partition has {topic.replicas} replicas: "
            "brokers refuse every row"
        )
        fitting = max(topic.replicas - 1, 1)
        yield Finding("error", message, remedies.topic_config(topic.name, f"min.insync.replicas={fitting}"))
    elif min_insync > topic.insync:
        message = (
            f"topic {topic.name}: a partition has {topic.insync} of {topic.replicas} replicas in sync, "
            f"min.insync.replicas is {min_insync}: brokers refuse its rows"
        )
        words = ("--describe", "--topic", topic.name, "--under-min-isr-partitions")
        yield Finding("error", message, f"start the brokers that hold them: {remedies.command('kafka-topics', *words)}")


def copies_findings(
    topic: TopicFacts, configs: Mapping[str, str], brokers: int, remedies: Remedies
) -> Iterator[Finding]:
    """Find what lets a topic lose decided rows, though every broker answered that they were written."""
    min_insync = int(configs["min.insync.replicas"])
    if topic.replicas == 1 and brokers > 1:
        message = (
            f"topic {topic.name}: one copy of its partitions (of {brokers} brokers): a lost disk loses decided rows"
        )
        yield Finding("warning", message, remedies.topic_replicas(topic.name))
    elif topic.replicas > 1 and min_insync == 1:
        message = (
            f"topic {topic.name}: min.insync.replicas is 1 with {topic.replicas} replicas: a row counts as written "
            "with one copy, and a lost disk can lose decided rows"
        )
        yield Finding("warning", message, remedies.topic_config(topic.name, "min.insync.replicas=2"))
    if configs.get("unclean.leader.election.enable") == "true":
        message = (
            f"topic {topic.name}: unclean.leader.election.enable is true: a replica that lags may become the leader, "
            "and decided rows are lost"
        )
        yield Finding("warning", message, remedies.topic_config(topic.name, "unclean.leader.election.enable=false"))


def rows_findings(
    options: KafkaOptions, topic: TopicFacts, configs: Mapping[str, str], schema: pa.Schema, remedies: Remedies
) -> Iterator[Finding]:
    """Compare a topic's settings with the rows' columns and the producer's settings."""
    yield from _compaction(topic.name, configs, schema, remedies)
    if "timestamp" in schema.names:
        yield from _timestamps(topic.name, configs, remedies)
    largest = int(configs["max.message.bytes"])
    allowed = int(float(options.producer.get("message.max.bytes", _LIBRDKAFKA_LARGEST)))
    if allowed > largest:
        message = (
            f"topic {topic.name}: takes batches of at most {largest} bytes (max.message.bytes), the producer makes "
            f"records of up to {allowed}: a larger one fails its task"
        )
        raised = remedies.topic_config(topic.name, f"max.message.bytes={allowed}")
        yield Finding("warning", message, f'{raised}; or producer = {{"message.max.bytes" = {largest}}} in the config')


def _compaction(name: str, configs: Mapping[str, str], schema: pa.Schema, remedies: Remedies) -> Iterator[Finding]:
    """Compaction needs keys, and takes away the records that could prove a commit once its id is forgotten."""
    if "compact" not in configs["cleanup.policy"]:
        return
    fix = remedies.topic_config(name, "cleanup.policy=delete")
    if "key" not in schema.names:
        message = f"topic {name} is compacted, and the rows have no key: brokers refuse every one"
        yield Finding("error", message, f'give the rows a column `key` (with JSON: key = ["..."]); or {fix}')
        return
    message = (
        f"topic {name} is compacted: a row without a key fails its task, and once the cluster has forgotten a "
        "transactional id its records may be gone that would prove a commit"
    )
    yield Finding("warning", message, f"see that no key is null; or {fix}")


def _timestamps(name: str, configs: Mapping[str, str], remedies: Remedies) -> Iterator[Finding]:
    """What brokers do with the rows' own timestamps: drop them, refuse old ones, or delete by them."""
    if configs.get("message.timestamp.type") == "LogAppendTime":
        message = f"topic {name}: message.timestamp.type is LogAppendTime: the rows' column timestamp is not kept"
        fix = remedies.topic_config(name, "message.timestamp.type=CreateTime")
        yield Finding("warning", message, f"{fix}; or take the column out")
        return
    for setting, default, when in (
        ("message.timestamp.before.max.ms", _FOR_EVER, "older"),
        ("message.timestamp.after.max.ms", _BROKERS_AHEAD_MS, "further ahead"),
    ):
        milliseconds = int(configs.get(setting, default))
        if milliseconds < default:
            message = (
                f"topic {name}: {setting} is {duration(milliseconds / 1000)}: a row whose column timestamp is {when} "
                "fails its task"
            )
            yield Finding("warning", message, remedies.topic_config(name, f"{setting}={default}"))
    kept = int(configs["retention.ms"])
    if "delete" in configs["cleanup.policy"] and kept >= 0:
        message = (
            f"topic {name}: keeps rows for {duration(kept / 1000)} (retention.ms) by their column timestamp: "
            "older ones may be deleted soon after their commit"
        )
        yield Finding("warning", message, f"{remedies.topic_config(name, 'retention.ms=-1')}; or take the column out")
