"""The road alone: rows into a null backend, through `Job.start`, beside Spark's noop sink on the same source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.null_backend import null_sinks
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.streams import Start, bare_query, own_query, run_query, spark_query
from benchmarks.warm_spark import varied_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BENCHMARK"]

_BATCHES, _FILES_A_BATCH = 6, 2
_ALL_THERE_IS = {"availableNow": True}


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(3_000_000)
    frame = _source(setting, rows)

    def variant(name: str, start_in: Callable[[Path, list[int]], Start]) -> Variant:
        return Variant(name, lambda folder: _query(start_in, folder, rows))

    variants = [
        variant("null", lambda folder, decided: own_query(frame, null_sinks(1), folder, "available_now", decided)),
        variant("noop", lambda folder, _: spark_query(frame, "noop", folder, _ALL_THERE_IS)),
        variant("bare", lambda folder, _: bare_query(frame, folder, _ALL_THERE_IS)),
    ]
    bounds = [
        Bound("rows_per_s", "null", "noop", at_least=0.6),
        Bound("rows_per_cpu_s", "null", "noop"),
        Bound("rows_per_s", "null", "bare", at_least=0.9),
        Bound("rows_per_cpu_s", "null", "bare"),
    ]
    notes = [
        f"{rows:,} rows (long, string, 100 characters) streamed from Parquet, {_BATCHES} batches of two partitions",
        "rows_per_s: Spark's own triggerExecution, without a query's first batch, which starts the workers",
        "Arrow's checks are off in the session, as `exactsink run` sets it",
    ]
    yield Plan(variants, bounds, notes)


def _source(setting: Setting, rows: int) -> DataFrame:
    spark, path = setting.spark(), str(setting.folder / "source")
    varied_frame(spark, rows).repartition(_BATCHES * _FILES_A_BATCH).write.parquet(path)
    reader = spark.readStream.schema(spark.read.parquet(path).schema)
    return reader.option("maxFilesPerTrigger", _FILES_A_BATCH).parquet(path)


def _query(start_in: Callable[[Path, list[int]], Start], folder: Path, rows: int) -> Work:
    decided: list[int] = []
    start = start_in(folder, decided)

    def work() -> Metrics:
        done = run_query(start, _BATCHES)
        if sum(one["numInputRows"] for one in done) != rows or sum(decided) not in (0, rows):
            raise RuntimeError(f"{rows:,} rows were to be read, and Spark reports {done}")
        timed = done[1:]
        seconds = sum(one["durationMs"]["triggerExecution"] for one in timed) / 1000
        return {"rows": rows, "rows_per_s": sum(one["numInputRows"] for one in timed) / seconds}

    return work


BENCHMARK = Benchmark("null", "Rows a second into a null backend, through Job.start, beside Spark's noop sink.", _open)
