"""Spark's own Kafka source: what `exactsink run` sets for it, and what its errors ask of a person.

The package is Spark's and comes by `[spark] packages`; nothing here imports it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from exactsink.contract import Fatal, Finding, Retryable
from exactsink.job.config.model import SourceSection
from exactsink.protocol.sinks import Sink

__all__ = ["own_targets", "source_error", "with_isolation"]

_ISOLATION = "kafka.isolation.level"
_LOST = re.compile(r"Some data may have been lost|KAFKA_DATA_LOSS")
"""What Spark's Kafka source says of rows that are gone."""
_GROWN = re.compile(r"Trigger\.AvailableNow should provide the same topic partitions")
"""What it says of a topic that has grown since a batch was planned that is still to run: again, at every start."""
_GONE = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
"""What Kafka's Java client says of a topic that is."""


def with_isolation(source: SourceSection) -> Mapping[str, str | float | bool]:
    """Return a source's options; Kafka's with `read_committed`, unless they say otherwise.

    Kafka's own default hands out rows of transactions that were, or will be, aborted: those of another exactsink job's
    undecided epochs, say.
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
            next='if they are gone for good: options = { failOnDataLoss = "false", ... } in [source] goes on with what '
            "is left, and no sink ever gets them; if the topic was made again: a new checkpoint, and `exactsink adopt`",
        )
    if any(map(_GROWN.search, lines)):
        return Fatal(
            "the topic has more partitions than when the batch was planned that is still to run",
            why="Spark's Kafka source can't finish such a batch with the trigger available_now",
            next='trigger = "1 second" in [job] until that epoch is complete (exactsink status), then exactsink stop; '
            "after that available_now works again",
        )
    gone = next((line for line in lines if _GONE in line), None)
    if gone is not None:
        return Retryable(
            "Kafka has not the topic, or a partition of it, that the source reads",
            why=gone,
            next="see what there is: kafka-topics.sh --bootstrap-server ... --list",
        )
    return None


def own_targets(source: SourceSection | None, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find the sinks that write into a topic which the job reads: an endless loop. Each with its finding.

    An error where both name a broker by the same address; else a warning, as only the name is the same for sure.
    """
    if source is None or source.format != "kafka":
        return
    options = {key.lower(): str(value) for key, value in source.options.items()}
    brokers = _addresses(options.get("kafka.bootstrap.servers", ""))
    for name, sink in sinks.items():
        kind, _, topic = sink.backend.target.partition(":")
        if kind != "kafka" or not _reads(options, topic):
            continue
        if brokers & _addresses(str(getattr(sink.backend.options, "bootstrap_servers", ""))):
            message = f"topic {topic} is the job's own source: each epoch's rows would be the next one's input"
            yield name, Finding("error", message, "give the sink, or the source, another topic")
        else:
            message = f"the job's source has a topic {topic}, too: on the same cluster that is an endless loop"
            yield name, Finding("warning", message, "nothing, if they are two clusters")


def _addresses(servers: str) -> frozenset[str]:
    return frozenset(address.strip().lower() for address in servers.split(",") if address.strip())


def _reads(options: Mapping[str, str], topic: str) -> bool:
    """Return whether a source with these options reads the topic."""
    if topic in (name.strip() for name in options.get("subscribe", "").split(",")):
        return True
    with suppress(ValueError):
        if topic in json.loads(options.get("assign", "{}")):
            return True
    with suppress(re.error):  # Java's patterns are not quite Python's
        return bool(re.fullmatch(options.get("subscribepattern", "(?!)"), topic))
    return False
