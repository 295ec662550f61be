"""Throughput of the framework alone: rows into a null backend beside a bare `mapInArrow` that drains them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.null_backend import drain, null_sinks
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, row_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BENCHMARK"]


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(5_000_000)
    frame = row_frame(setting.spark(), rows)
    variants = [
        Variant("null", lambda folder: _ours(frame, folder, rows)),
        Variant("bare", lambda folder: lambda: _bare(frame, rows)),
    ]
    bounds = [Bound("rows_per_s", "null", "bare", at_least=0.9), Bound("rows_per_cpu_s", "null", "bare")]
    yield Plan(
        variants, bounds, [f"{rows:,} rows (long, string, 100 characters), {PARTITIONS} partitions, made in Spark"]
    )


def _ours(frame: DataFrame, folder: Path, rows: int) -> Work:
    epoch = FrameEpoch(EpochDriver(null_sinks(1), folder), frame)

    def work() -> Metrics:
        assert list(epoch().values()) == [rows]
        return {"rows": rows}

    return work


def _bare(frame: DataFrame, rows: int) -> Metrics:
    counted = frame.mapInArrow(drain, "rows bigint").collect()
    assert sum(row["rows"] for row in counted) == rows
    return {"rows": rows}


BENCHMARK = Benchmark(
    "null", "Rows a second into a null backend, decided and committed, beside a bare mapInArrow.", _open
)
