"""Topics for `exactsink bench`: one per writer, beside a sink's own topic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from exactsink.bench.target import BenchReader, BenchTarget, Place
from exactsink.contract import BackendOptions, ConfigError, Fatal
from exactsink_kafka import columns_client  # noqa: F401 - here once, not in each process that a bench forks
from exactsink_kafka.group import group_of
from exactsink_kafka.options import KafkaOptions, librdkafka_settings

__all__ = ["TopicTarget", "targets"]

_ANSWER_SECONDS = 30
_MOST_RECORDS = 10_000
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND)


def targets(options: BackendOptions | None) -> Mapping[str, BenchTarget]:
    """Return a target for each writer, by name. Raises ConfigError without a sink, or if its rows name their topics."""
    if options is None:
        raise ConfigError("it needs brokers", why="name a job that writes to some, with --job")
    assert isinstance(options, KafkaOptions)
    if options.topic is None:
        why = "the bench writes to a topic of its own, which such rows would not reach"
        raise ConfigError("the sink's rows name their own topics", why=why, next="give the sink a `topic`")
    return {writer: TopicTarget(writer, options) for writer in ("plain", "fast")}


@dataclass(frozen=True)
class TopicTarget(BenchTarget):
    """A topic with as many partitions and replicas as the sink's own."""

    writer: str
    given: KafkaOptions

    @property
    def holds(self) -> str:
        return "read_committed readers of the partitions, at its first row, from its tasks' begin"

    def make(self, place: Place) -> Mapping[str, Any]:
        admin = self._admin()
        own = admin.list_topics(timeout=_ANSWER_SECONDS).topics.get(self.given.topic or "")  # by name, it'd be made
        if own is None:
            raise ConfigError(f"there is no topic {self.given.topic}", next="make it, or correct `topic`")
        like = (len(own.partitions), len(own.partitions[0].replicas))
        admin.create_topics([NewTopic(place.name, *like)])[place.name].result(_ANSWER_SECONDS)
        end = time.monotonic() + _ANSWER_SECONDS
        while not _led(admin, place.name, like[0]):
            if time.monotonic() > end:
                raise Fatal(f"topic {place.name} has no leaders yet", next="look at the brokers")
        return {"topic": place.name, "writer": self.writer, "mark_topic": None, "report_offsets_to": None}

    def reader(self, place: Place) -> BenchReader:
        return _TopicReader(librdkafka_settings(self.given, "exactsink-bench"), place.name)

    def drop(self, place: Place) -> None:
        """Delete the topic, and the group that holds the sink's mark. Idempotent."""
        admin = self._admin()
        for gone in admin.delete_topics([place.name]).values():
            _unless_gone(gone)
        for gone in admin.delete_consumer_groups([group_of(place.job, place.sink)]).values():
            _unless_gone(gone)

    def _admin(self) -> AdminClient:
        return AdminClient({**librdkafka_settings(self.given, "exactsink-bench"), "log_level": 0})


def _led(admin: AdminClient, topic: str, partitions: int) -> bool:
    found = admin.list_topics(timeout=_ANSWER_SECONDS).topics.get(topic)
    return found is not None and [p.leader >= 0 for p in found.partitions.values()] == [True] * partitions


def _unless_gone(asked: Any) -> None:
    try:
        asked.result(_ANSWER_SECONDS)
    except KafkaException as error:
        if error.args[0].code() not in _GONE:
            raise


class _TopicReader(BenchReader):
    """Counts the rows of all partitions that a read_committed consumer gets."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        ours: dict[str, Any] = {
            "group.id": "exactsink-bench",  # never joined: partitions are assigned
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
        self._consumer = Consumer({**settings, **ours})
        found = self._consumer.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        self._rows = 0

    def rows(self) -> int:
        for message in self._consumer.consume(_MOST_RECORDS, timeout=0.005):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            self._rows += 1
        return self._rows

    def close(self) -> None:
        self._consumer.close()
