"""Spark's own Kafka source: the option that `exactsink run` sets for it, and the next step after its errors.

The package is Spark's and comes by `[spark] packages`; nothing here imports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exactsink.contract import Fatal, Retryable
from exactsink.job.config.model import SourceSection

__all__ = ["source_error", "with_isolation"]

_ISOLATION = "kafka.isolation.level"
_LOST = re.compile(r"Some data may have been lost|KAFKA_DATA_LOSS")
"""The texts of Spark's Kafka source about rows that are gone."""
_GROWN = re.compile(r"Trigger\.AvailableNow should provide the same topic partitions")
"""Its text, at every start, about a topic that got partitions after an unfinished batch was planned."""
_GONE = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
"""The error of Kafka's Java client for a topic, or a partition, that does not exist."""


def with_isolation(source: SourceSection) -> Mapping[str, str | float | bool]:
    """Return a source's options. For Kafka, add `read_committed` unless they set the isolation level.

    Kafka's own default also gives rows of transactions that were or will be aborted, for example of another job's
    undecided epochs.
    """
    if source.format != "kafka" or any(key.lower() == _ISOLATION for key in source.options):
        return source.options
    return {**source.options, _ISOLATION: "read_committed"}


def source_error(error: Exception) -> Fatal | Retryable | None:
    """Return the error with a next step for a person, None if the error is not one of Spark's Kafka source."""
    lines = [line.strip()[:500] for line in str(error).splitlines()]
    lost = next(filter(_LOST.search, lines), None)
    if lost is not None:
        return Fatal(
            "the source's topic lacks rows that the job has not read yet",
            why=f"retention or a person deleted them, or the topic was created again; Spark's error: {lost}",
            next='if the rows are lost, set failOnDataLoss = "false" in [source.options]: the job continues with the '
            "remaining rows, and no sink ever gets the lost ones; if the topic was created again, move the checkpoint "
            "away, then `exactsink adopt JOB.toml`",
        )
    if any(map(_GROWN.search, lines)):
        return Fatal(
            "the topic has more partitions now than when the unfinished batch was planned",
            why="Spark's Kafka source can't finish such a batch with the trigger available_now",
            next='set trigger = "1 second" in [job] until that epoch is complete (`exactsink status JOB.toml`), then '
            "`exactsink stop JOB.toml`; after that available_now works again",
        )
    gone = next((line for line in lines if _GONE in line), None)
    if gone is not None:
        return Retryable(
            "Kafka lacks the topic that the source reads, or one of its partitions",
            why=gone,
            next="list the topics: kafka-topics.sh --bootstrap-server ... --list; then correct [source.options]",
        )
    return None
