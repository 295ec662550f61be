"""Spark's own sinks over the same stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.null_backend import drain
from benchmarks.peers.ours import triggers
from benchmarks.peers.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["drain_batch", "stream_into", "stream_through"]


def stream_into(
    spark: SparkSession, source: Source, folder: Path, format: str, options: Mapping[str, str] | None = None
) -> list[int]:
    """Write all of the source by a stream sink of Spark's. Return each trigger's milliseconds."""
    writer = source.stream(spark).writeStream.format(format).options(**(options or {}))
    return _to_the_end(writer, source, folder)


def stream_through(
    spark: SparkSession, source: Source, folder: Path, body: Callable[[DataFrame, int], None]
) -> list[int]:
    """Pass all of the source to a function, batch by batch. Return each trigger's milliseconds."""
    return _to_the_end(source.stream(spark).writeStream.foreachBatch(body), source, folder)


def drain_batch(frame: DataFrame, number: int) -> None:
    """Read all rows of a batch in the tasks' Python, and drop them: the least cost of a batch."""
    frame.mapInArrow(drain, "rows bigint").collect()


def _to_the_end(writer: DataStreamWriter, source: Source, folder: Path) -> list[int]:
    checkpointed = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = checkpointed.trigger(availableNow=True).start()
    query.awaitTermination()
    return triggers(query.recentProgress, source.epochs)
