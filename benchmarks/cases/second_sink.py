"""A second sink on the same frame: it causes no second read of the source, and adds so much time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.null_backend import null_sinks
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, row_frame

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BENCHMARK"]

_WAYS = {"1 sink": (1,), "2 sinks": (2,), "2 jobs": (1, 1)}
"""How many null sinks each pass feeds. Two jobs prove that a second read would be noticed."""


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    spark = setting.spark()
    rows, counted_rows = setting.scaled(5_000_000), setting.scaled(200_000)
    frame = row_frame(spark, rows)
    variants = [Variant(name, _timed(frame, passes, rows)) for name, passes in _WAYS.items()]
    variants += [Variant(f"{name}, counted", _counted(spark, passes, counted_rows)) for name, passes in _WAYS.items()]
    bounds = [
        Bound("source_reads", "2 sinks, counted", "1 sink, counted", at_least=1, at_most=1),
        Bound("source_reads", "1 sink, counted", at_least=1, at_most=1),
        Bound("source_reads", "2 jobs, counted", at_least=2, at_most=2),
        Bound("wall_s", "2 sinks", "1 sink"),
        Bound("wall_s", "2 jobs", "1 sink"),
        Bound("cpu_s", "2 sinks", "1 sink"),
    ]
    notes = [
        f"{rows:,} rows in {PARTITIONS} partitions; counted: {counted_rows:,} rows, every one counted as it is read",
        "2 jobs: the frame is run once for each sink, which the count must show",
    ]
    yield Plan(variants, bounds, notes)


def _timed(frame: DataFrame, passes: tuple[int, ...], rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        epochs = _epochs(frame, passes, folder)
        return lambda: _run(epochs, rows)

    return prepare


def _counted(spark: SparkSession, passes: tuple[int, ...], rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        count = spark.sparkContext.accumulator(0)
        plain = row_frame(spark, rows)
        epochs = _epochs(plain.mapInArrow(_Counting(count), plain.schema), passes, folder)

        def work() -> Metrics:
            _run(epochs, rows)
            return {"source_reads": count.value / rows}

        return work

    return prepare


class _Counting:
    """Pass every batch on, and count its rows."""

    def __init__(self, count: Accumulator[int]) -> None:
        self._count = count

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._count.add(batch.num_rows)
            yield batch


def _epochs(frame: DataFrame, passes: tuple[int, ...], folder: Path) -> list[FrameEpoch]:
    return [
        FrameEpoch(EpochDriver(null_sinks(sinks), _made(folder / str(number))), frame)
        for number, sinks in enumerate(passes)
    ]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _run(epochs: list[FrameEpoch], rows: int) -> Metrics:
    for epoch in epochs:
        assert set(epoch().values()) == {rows}
    return {"rows": rows}


BENCHMARK = Benchmark("second_sink", "Two sinks on one frame read the source once; the time against one sink.", _open)
