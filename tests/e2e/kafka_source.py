"""A stream of a Kafka topic's records in fixed ranges of offsets, for Spark: its batches are the same in every replay.

The offsets in its checkpoint are written as those of Spark's own Kafka source. A job takes it by its transform, in
place of its [source]; the session's `spark.e2e.*` name the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

__all__ = ["CONF", "SOURCE", "KafkaRanges", "rows"]

SOURCE = """
[source]
format = "rate"  # the transform puts the topic in its place
"""
CONF = """
"spark.e2e.bootstrap" = "{bootstrap}"
"spark.e2e.topic" = "{topic}"
"spark.e2e.of" = "{of}"
"spark.e2e.step" = "{step}"
"spark.e2e.batches" = "{batches}"
"""
"""For `[spark.conf]`: the options of `KafkaRanges`."""
_OPTIONS = ("bootstrap", "topic", "of", "step", "batches")
_ROW = "id BIGINT, kind STRING, amount DOUBLE, tags MAP<STRING, INT>"

_PATIENCE = 60.0  # seconds for one range, of a broker that is up


def rows(frame: DataFrame) -> DataFrame:
    """Return the rows that the topic's records hold as JSON."""
    spark = frame.sparkSession
    spark.dataSource.register(KafkaRanges)
    options = {name: spark.conf.get(f"spark.e2e.{name}") for name in _OPTIONS}
    records = spark.readStream.format(KafkaRanges.name()).options(**options).load()
    return records.select(F.from_json(F.col("value").cast("string"), _ROW).alias("row")).select("row.*")


class KafkaRanges(DataSource):
    """Options: `bootstrap`, `topic`, how many partitions it is `of`, `step` (offsets of each in a batch), `batches`."""

    @classmethod
    def name(cls) -> str:
        return "kafka_ranges"

    def schema(self) -> str:
        return "value BINARY"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader({name: str(value) for name, value in self.options.items()})


@dataclass(frozen=True)
class _Range(InputPartition):
    partition: int
    start: int
    end: int


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._bootstrap = options["bootstrap"]
        self._topic = options["topic"]
        self._partitions = int(options["of"])
        self._step = int(options["step"])
        self._last = self._step * int(options["batches"])

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._step)

    def prepareForTriggerAvailableNow(self) -> None:
        """All that is to be read is known already."""

    def initialOffset(self) -> dict[str, Any]:
        return {self._topic: {str(number): 0 for number in range(self._partitions)}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        step = self._last if isinstance(limit, ReadAllAvailable) else self._step
        return {self._topic: {number: min(at + step, self._last) for number, at in start[self._topic].items()}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = start[self._topic], end[self._topic]
        return [_Range(int(number), first[number], last[number]) for number in last if first[number] < last[number]]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes | None]]:
        assert isinstance(partition, _Range)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "ranges",  # never joined: partitions are assigned
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        try:
            consumer.assign([TopicPartition(self._topic, partition.partition, partition.start)])
            yield from _until(consumer, partition.end)
        finally:
            consumer.close()


def _until(consumer: Consumer, end: int) -> Iterator[tuple[bytes | None]]:
    """Return the values of the committed records before an offset."""
    while True:
        message = consumer.poll(_PATIENCE)
        if message is None:
            raise TimeoutError(f"no record for {_PATIENCE} s")
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if message.offset() >= end:
            return
        assert error is None, f"the topic ends at {message.offset()}, before {end}"
        yield (message.value(),)
