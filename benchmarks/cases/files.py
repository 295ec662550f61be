"""Throughput into files, a whole epoch with its commit, beside Spark's own writers, which sync nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, varied_frame
from exactsink.protocol.sinks import Sink
from exactsink_files.backend import FilesBackend, FilesOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BENCHMARK"]

_FLOOR = "json text, dropped"
_FLOOR = "json text, dropped"
_FORMATS: tuple[Literal["parquet", "json"], ...] = ("parquet", "json")


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(5_000_000)
    frame = varied_frame(setting.spark(), rows)
    variants, bounds = [], []
    for kind in _FORMATS:
        variants += [
            Variant(f"{kind}, files sink", _ours(frame, kind, rows)),
            Variant(f"{kind}, Spark", _spark(frame, kind, rows)),
        ]
        names = (f"{kind}, files sink", f"{kind}, Spark")
        bounds += [Bound("rows_per_s", *names, at_least=0.7), Bound("rows_per_cpu_s", *names)]
        bounds.append(Bound("megabytes", *names))
    variants.append(Variant(_FLOOR, _dropped(frame, rows)))
    bounds.append(Bound("rows_per_s", _FLOOR, "json, Spark"))
    notes = [f"{rows:,} rows (long, string, 100 characters), {PARTITIONS} partitions, made in Spark; Parquet in snappy"]
    notes.append(f"{_FLOOR}: what any writer in Python can reach at most, as the JVM makes the text in both cases")
    yield Plan(variants, bounds, notes)


def _ours(frame: DataFrame, format: Literal["parquet", "json"], rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        target = folder / "target"
        backend = FilesBackend(FilesOptions(path=str(target), format=format))
        epoch = FrameEpoch(EpochDriver({"files": Sink("files", "files", backend, staging="")}, folder), frame)

        def work() -> Metrics:
            assert list(epoch().values()) == [rows]
            return {"rows": rows, "megabytes": _megabytes(target, format)}

        return work

    return prepare


def _spark(frame: DataFrame, format: Literal["parquet", "json"], rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        target = folder / "target"

        def work() -> Metrics:
            frame.write.format(format).save(str(target))
            return {"rows": rows, "megabytes": _megabytes(target, format)}

        return work

    return prepare


def _dropped(frame: DataFrame, rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        lines = frame.selectExpr("to_json(struct(*)) AS value")

        def work() -> Metrics:
            assert sum(row["rows"] for row in lines.mapInArrow(_count, "rows long").collect()) == rows
            return {"rows": rows}

        return work

    return prepare


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def _megabytes(target: Path, format: str) -> float:
    """Add up what readers see."""
    return sum(file.stat().st_size for file in target.glob(f"*.{format}")) / 1e6


BENCHMARK = Benchmark("files", "Rows a second into Parquet and JSON lines, committed, beside df.write.", _open)
