"""A stream for Spark whose offsets are written as those of its own Kafka source, in epochs of as many rows each.

A job takes it by its transform, in place of its [source]. The rows are those of the files that `write_source` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tests.e2e.jobs import PARTICIPANTS, ROWS_A_BATCH, lines_of

__all__ = ["CONF", "EPOCHS", "SOURCE", "TRANSFORM", "rows"]

EPOCHS = 4
SOURCE = """
[source]
format = "rate"  # the transform puts the topic in its place
"""
TRANSFORM = 'transform = "tests.e2e.kafka_source:rows"\n'
"""For `[job]`."""
CONF = '"spark.e2e.topic" = "{topic}"\n'
"""For `[spark.conf]`."""


def rows(frame: DataFrame) -> DataFrame:
    """Return the stream of the topic that the session's configuration names."""
    spark = frame.sparkSession
    spark.dataSource.register(_Topic)
    return spark.readStream.format(_Topic.name()).option("topic", spark.conf.get("spark.e2e.topic") or "").load()


class _Topic(DataSource):
    @classmethod
    def name(cls) -> str:
        return "topic"

    def schema(self) -> str:
        return "id BIGINT, kind STRING, amount DOUBLE, tags MAP<STRING, INT>"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(str(self.options["topic"]))


@dataclass(frozen=True)
class _Range(InputPartition):
    partition: int
    start: int
    end: int


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, topic: str) -> None:
        self._topic = topic

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(ROWS_A_BATCH)

    def prepareForTriggerAvailableNow(self) -> None:
        """All that is to be read is known already."""

    def initialOffset(self) -> dict[str, Any]:
        return {self._topic: {str(number): 0 for number in range(PARTICIPANTS)}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        last = EPOCHS * ROWS_A_BATCH
        step = last if isinstance(limit, ReadAllAvailable) else ROWS_A_BATCH
        return {self._topic: {number: min(at + step, last) for number, at in start[self._topic].items()}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = start[self._topic], end[self._topic]
        return [_Range(int(number), first[number], last[number]) for number in last if first[number] < last[number]]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        assert isinstance(partition, _Range)
        for epoch in range(partition.start // ROWS_A_BATCH, partition.end // ROWS_A_BATCH):
            for row in map(json.loads, lines_of(epoch * PARTICIPANTS + partition.partition)):
                yield row["id"], row["kind"], row["amount"], row["tags"]
