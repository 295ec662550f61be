"""Small epochs: ours beside Spark's own file sink, and beside functions that do nothing, or only read."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.null_backend import null_sinks
from benchmarks.peers.lines.files import count_files
from benchmarks.peers.ours import job_of_file, job_of_sink, stream_job
from benchmarks.peers.sides import SPARK, Sides
from benchmarks.peers.source import ROWS, make_source
from benchmarks.peers.spark_sinks import drain_batch, stream_into, stream_through
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work

__all__ = ["SMALL_EPOCHS"]

_ROWS = 1000
_SETTLING = 5
_SPARK, _EMPTY, _BARE = "Spark stream sink", "empty foreachBatch", "bare mapInArrow"
_NULL = "ours, a null sink"


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    source = make_source(ROWS, setting.folder / "source", _SETTLING + setting.scaled(30, least=5), _ROWS)
    spark = setting.spark()
    sides = Sides(source.rows, {})

    def variant(name: str, run: Callable[[Path], list[int]], writes: bool = True) -> Variant:
        def prepare(folder: Path) -> Work:
            def work() -> Metrics:
                return {"trigger_ms": statistics.median(run(folder)[_SETTLING:])}

            return sides.timed(SPARK, work)

        return Variant(name, prepare, (lambda folder: count_files(folder / "out", "parquet")) if writes else None)

    variants = [
        variant(
            "ours",
            lambda folder: stream_job(spark, source, lambda: job_of_file(folder, "files", path=str(folder / "out"))),
        ),
        variant(_SPARK, lambda at: stream_into(spark, source, at, "parquet", {"path": str(at / "out")})),
        variant(_EMPTY, lambda folder: stream_through(spark, source, folder, lambda frame, number: None), writes=False),
        variant(
            _NULL,
            lambda folder: stream_job(spark, source, lambda: job_of_sink(folder, *null_sinks(1).values())),
            writes=False,
        ),
        variant(_BARE, lambda folder: stream_through(spark, source, folder, drain_batch), writes=False),
    ]
    bounds = [
        Bound("trigger_ms", "ours", _SPARK, at_most=1.15),
        Bound("cpu_s", "ours", _SPARK, at_most=1.15),
        Bound("trigger_ms", "ours", _EMPTY),
        Bound("trigger_ms", _NULL, _BARE, at_most=1.3),
    ]
    notes = [
        source.note,
        f"Parquet; trigger_ms: median over a query's epochs, as Spark reports them, but the first {_SETTLING}",
    ]
    yield Plan(variants, bounds, notes)


SMALL_EPOCHS = Benchmark("small_epochs", "Epochs of 1,000 rows into Parquet, beside Spark's stream sink.", _open)
