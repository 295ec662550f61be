"""How an epoch on Spark grows: with its rows, its partitions, and its sinks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.null_backend import null_sinks
from benchmarks.plan import Benchmark, Growth, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import row_frame
from exactsink.bench.clocks import cpu_reading, cpu_seconds_since

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PARTITIONS", "ROWS", "SINKS"]

_ROWS = (100, 1_000, 10_000, 100_000, 1_000_000)
_MOST_ROWS = 10_000_000
_PARTITIONS = (1, 2, 4, 8, 16, 32, 64)
_SINKS = (1, 2, 4)
_CUT_ROWS = 100_000
_SENT_ROWS = 1_000_000
_EPOCHS = 3


@contextmanager
def _open_rows(setting: Setting) -> Iterator[Plan]:
    sizes = _sizes((*_ROWS, _MOST_ROWS) if setting.full else _ROWS, setting)
    spark = setting.spark()
    names = {rows: f"{rows:,} rows" for rows in sizes}
    variants = [_variant(names[rows], row_frame(spark, rows), 1, rows, rows) for rows in sizes]
    growth = Growth(
        "An epoch over its rows",
        "rows",
        "cpu_ms",
        "CPU ms an epoch",
        {"null sink": names},
        1.25,
        sizes[-2],
        "cpu_us_each",
    )
    yield Plan(variants, growth.bounds(), ["4 partitions, 130 bytes a row, made in Spark"], [growth])


@contextmanager
def _open_partitions(setting: Setting) -> Iterator[Plan]:
    rows, spark = setting.scaled(_CUT_ROWS), setting.spark()
    names = {count: f"{count} partitions" for count in _PARTITIONS}
    variants = [_variant(names[count], row_frame(spark, rows, count), 1, rows, count) for count in _PARTITIONS]
    growth = Growth(
        "An epoch over its partitions",
        "partitions",
        "cpu_ms",
        "CPU ms an epoch",
        {"null sink": names},
        1.25,
        16,
        "cpu_us_each",
    )
    yield Plan(variants, growth.bounds(), [f"{rows:,} rows, however they are cut"], [growth])


@contextmanager
def _open_sinks(setting: Setting) -> Iterator[Plan]:
    rows, spark = setting.scaled(_SENT_ROWS), setting.spark()
    names = {count: f"{count} sinks" for count in _SINKS}
    frame = row_frame(spark, rows)
    variants = [_variant(names[count], frame, count, rows, count) for count in _SINKS]
    growth = Growth("An epoch over its sinks", "sinks", "cpu_ms", "CPU ms an epoch", {"null sinks": names}, 1.5, 1)
    yield Plan(variants, growth.bounds(), [f"{rows:,} rows in one pass, all of them to every sink"], [growth])


def _sizes(sizes: Sequence[int], setting: Setting) -> Sequence[int]:
    """Leave out sizes for which a smaller scale has no time. Two sizes stay."""
    return [size for size in sizes if size <= sizes[-1] * setting.scale or size in sizes[:2]]


def _variant(name: str, frame: DataFrame, sinks: int, rows: int, size: int) -> Variant:
    return Variant(name, lambda folder: _work(frame, sinks, rows, size, folder))


def _work(frame: DataFrame, sinks: int, rows: int, size: int, folder: Path) -> Work:
    driver = EpochDriver(null_sinks(sinks), folder)
    epochs = [FrameEpoch(driver, frame) for _ in range(_EPOCHS)]

    def work() -> Metrics:
        before, started = cpu_reading(), time.perf_counter()
        for epoch in epochs:
            written = epoch()
            if list(written.values()) != [rows] * sinks:
                raise RuntimeError(f"{rows} rows were to be written to {sinks} sinks: {dict(written)}")
        seconds, cpu = (time.perf_counter() - started) / _EPOCHS, cpu_seconds_since(before) / _EPOCHS
        return {"epoch_ms": seconds * 1e3, "cpu_ms": cpu * 1e3, "cpu_us_each": cpu / size * 1e6}

    return work


ROWS = Benchmark("growth_rows", "An epoch of 100 to 1,000,000 rows (10,000,000 with --full), null sink.", _open_rows)
PARTITIONS = Benchmark("growth_partitions", "An epoch in 1 to 64 partitions, null sink.", _open_partitions)
SINKS = Benchmark("growth_sinks", "An epoch into 1 to 4 null sinks, in one pass.", _open_sinks)
