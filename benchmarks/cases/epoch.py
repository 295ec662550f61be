"""What an epoch costs in a streaming query: our job beside a bare `mapInArrow(f).collect()`, many small batches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.null_backend import drain, null_sinks
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BENCHMARK"]

_ROWS = 1000
_SETTLING = 5
_METRICS = {"trigger_ms": "triggerExecution", "add_batch_ms": "addBatch"}

Body = Callable[["DataFrame", int], None]


class _Enough(Exception):
    """So many batches were asked for."""


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    spark = setting.spark()
    batches = _SETTLING + setting.scaled(50, least=5)

    def variant(name: str, body_in: Callable[[Path], Body]) -> Variant:
        return Variant(name, lambda folder: _query(spark, body_in(folder), folder, batches))

    variants = [
        variant("ours", lambda folder: _job(folder, 1)),
        variant("bare", lambda folder: _bare),
        variant("ours, 2 sinks", lambda folder: _job(folder, 2)),
    ]
    bounds = [
        Bound("trigger_ms", "ours", "bare", at_most=1.3),
        Bound("add_batch_ms", "ours", "bare"),
        Bound("trigger_ms", "ours, 2 sinks", "ours"),
    ]
    notes = [
        f"rate-micro-batch, {_ROWS} rows in 2 partitions a batch; medians over {batches - _SETTLING} batches a round",
        f"the first {_SETTLING} batches of a query, and its start, are left out",
    ]
    yield Plan(variants, bounds, notes)


def _bare(frame: DataFrame, batch_id: int) -> None:
    frame.mapInArrow(drain, "rows bigint").collect()


def _job(folder: Path, sinks: int) -> Body:
    from exactsink.job.config import JobConfig
    from exactsink.job.config.model import JobSection, SinkSection
    from exactsink.spark.job import Job

    bound = null_sinks(sinks)
    sections = {name: SinkSection(backend="null") for name in bound}
    config = JobConfig(job=JobSection(name="benchmark", checkpoint=str(folder / "checkpoint")), sinks=sections)
    return Job(config, bound).foreach_batch()


def _query(spark: SparkSession, body: Body, folder: Path, batches: int) -> Work:
    """Run a query until it has done so many batches, and take the times that Spark itself reports."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).option("numPartitions", 2).load()

    def enough(frame: DataFrame, batch_id: int) -> None:
        if batch_id == batches:
            raise _Enough
        body(frame, batch_id)

    def work() -> Metrics:
        from pyspark.errors import StreamingQueryException

        writer = source.writeStream.foreachBatch(enough).option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if _Enough.__name__ not in str(error):
                raise
        return _medians([progress for progress in query.recentProgress if progress["batchId"] < batches], batches)

    return work


def _medians(progress: list[Any], batches: int) -> Metrics:
    done = {one["batchId"]: one["durationMs"] for one in progress}
    if set(done) != set(range(batches)):
        raise RuntimeError(f"Spark reports batches {sorted(done)}, and {batches} were asked for")
    counted = [done[batch] for batch in range(_SETTLING, batches)]
    return {name: statistics.median(one[key] for one in counted) for name, key in _METRICS.items()}


BENCHMARK = Benchmark(
    "epoch", "An epoch of small batches with null sinks, beside a bare mapInArrow().collect().", _open
)
