"""Spark's own Kafka source: what `exactsink run` sets for it, and what its errors ask of a person.

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
"""What Spark's Kafka source says of rows that are gone."""
_GROWN = re.compile(r"Trigger\.AvailableNow should provide the same topic partitions")
"""What it says of a topic that has grown since a batch was planned that is still to run: again, at every start."""
_GONE = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
"""What Kafka's Java client says of a topic that is."""


def with_isolation(source: SourceSection) -> Mapping[str, str | float | bool]:
    """Return a source's options; Kafka's with `read_committed`, unless they say otherwise.

    Kafka's own default hands out rows of transactions that were, or will be, aborted, for example of another job's
    undecided epochs.
    """
    if source.format != "kafka" or any(key.lower() == _ISOLATION for key in source.options):
        return source.options
    return {**source.options, _ISOLATION: "read_committed"}


def source_error(error: Exception) -> Fatal | Retryable | None:
    """Return what an error of Spark's Kafka source asks of a person; None for any other error."""
    lines = [line.strip()[:500] for line in str(error).splitlines()]
    lost = next(filter(_LOST.search, lines), None)
    if lost is not None:
        return Fatal(
            "the source's topic lacks rows that the checkpoint has still to read",
            why=f"retention or a person deleted them, or the topic was made again; Spark says: {lost}",
            next='if they are lost: options = { failOnDataLoss = "false", ... } in [source] goes on with what '
            "is left, and no sink ever gets them; if the topic was made again: a new checkpoint, and "
            "`exactsink adopt JOB.toml`",
        )
    if any(map(_GROWN.search, lines)):
        return Fatal(
            "the topic has more partitions than when the batch was planned that is still to run",
            why="Spark's Kafka source can't finish such a batch with the trigger available_now",
            next='trigger = "1 second" in [job] until that epoch is complete (`exactsink status JOB.toml`), then '
            "`exactsink stop JOB.toml`; after that available_now works again",
        )
    gone = next((line for line in lines if _GONE in line), None)
    if gone is not None:
        return Retryable(
            "Kafka lacks the topic that the source reads, or one of its partitions",
            why=gone,
            next="list the topics: kafka-topics.sh --bootstrap-server ... --list",
        )
    return None
