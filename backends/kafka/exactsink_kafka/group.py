"""Commit a Kafka source's end offsets to a consumer group, for tools that show lag. Nothing is ever read from there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaError, NoError
from kafka.structs import OffsetAndMetadata

from exactsink.contract import Fatal, Retryable

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

__all__ = ["report_offsets", "source_offsets"]

_CAUSES = {
    "UnknownMemberIdError": (
        "consumers are members of this group, and it takes no offsets from outside",
        "name a group that nobody consumes with: kafka-consumer-groups.sh --describe --members shows who does",
    ),
    "UnknownTopicOrPartitionError": (
        "this cluster has no such topic or partition: the source reads from another one",
        "take report_offsets_to out of the sink's options; it is for a source on the sink's own cluster",
    ),
    "TopicAuthorizationFailedError": (
        "the sink's user may not read the source's topic",
        "kafka-acls.sh --add --operation Read --topic ..., or take report_offsets_to out of the sink's options",
    ),
    "GroupAuthorizationFailedError": (
        "the sink's user may not use the group",
        "kafka-acls.sh --add --operation Read --group ..., or take report_offsets_to out of the sink's options",
    ),
}
_LARGEST_PARTITION, _LARGEST_OFFSET = 2**31 - 1, 2**63 - 1


def report_offsets(admin: KafkaAdminClient, group: str, ends: Sequence[str]) -> None:
    """Commit where the source stands to the group. Idempotent, from any process; no row hangs on it.

    Raises Retryable when the next epoch may have more luck (make a new `admin` then: it keeps the coordinator that it
    once found, also when that has moved), and Fatal when no source reports Kafka's offsets.
    """
    doing = f"commit the source's offsets to group {group}"
    offsets = {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, "", None)
        for topic, partitions in source_offsets(ends).items()
        for partition, offset in partitions.items()
    }
    if not offsets:
        raise Fatal(
            f"{doing}: no source of this job reports its offsets as Spark's Kafka source does",
            why=f"they read {'; '.join(ends) or 'nothing'}",
            next="take report_offsets_to out of the sink's options",
        )
    try:
        answers = admin.alter_group_offsets(group, offsets)
    except (KafkaError, OSError) as error:
        raise Retryable(f"{doing}: {error}", next="the next epoch tries again") from error
    refused = {partition: str(answer.__name__) for partition, answer in answers.items() if answer is not NoError}
    if refused:
        raise _refusal(doing, refused)


def source_offsets(ends: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
    """Read Kafka's offsets, by topic and partition, out of what sources say; other sources' are passed over.

    Of two sources that read the same partition the one that lags counts.
    """
    found: dict[str, dict[int, int]] = {}
    for end in ends:
        try:
            offsets = list(_offsets(json.loads(end)))
        except ValueError:
            continue
        for topic, partition, offset in offsets:
            there = found.setdefault(topic, {})
            there[partition] = min(offset, there.get(partition, offset))
    return found


def _offsets(end: Any) -> Iterator[tuple[str, int, int]]:
    """Read one source's end: `{"orders": {"0": 17, "1": 4}}`. Raises ValueError when it is no such thing."""
    for topic, partitions in _mapping(end).items():
        for partition, offset in _mapping(partitions).items():
            number = int(partition) if partition.isascii() and partition.isdecimal() else -1
            if not 0 <= number <= _LARGEST_PARTITION:
                raise ValueError(f"{partition!r} is no partition")
            if type(offset) is not int or not 0 <= offset <= _LARGEST_OFFSET:
                raise ValueError(f"{offset!r} is no offset")
            yield topic, number, offset


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no object")
    return value


def _refusal(doing: str, refused: Mapping[TopicPartition, str]) -> Retryable:
    """Return what the broker answered; it takes the offsets of the partitions that are not named."""
    error = next(iter(refused.values()))
    partitions = [f"{p.topic}/{p.partition}" for p, answer in refused.items() if answer == error]
    why, fix = _CAUSES.get(error, ("", "the next epoch tries again"))
    said = f"{', '.join(partitions[:3])}{', ...' if len(partitions) > 3 else ''}"
    return Retryable(f"{doing}: the broker answered {error} for {said}", why=why, next=fix)
