"""What an epoch costs in a streaming query of small batches: our job beside Spark's own file sink, and bare ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.null_backend import null_sinks
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.streams import Start, bare_query, own_query, run_query, spark_query
from exactsink.protocol.sinks import Sink
from exactsink_files.backend import FilesBackend, FilesOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BENCHMARK"]

_ROWS = 1000
_SETTLING = 5
_AT_ONCE = {"processingTime": "0 seconds"}
_METRICS = {"trigger_ms": "triggerExecution", "add_batch_ms": "addBatch"}


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    source = setting.spark().readStream.format("rate-micro-batch")
    frame = source.option("rowsPerBatch", _ROWS).option("numPartitions", 2).load()
    batches = _SETTLING + setting.scaled(50, least=5)

    def variant(name: str, start_in: Callable[[Path], Start]) -> Variant:
        return Variant(name, lambda folder: _query(start_in(folder), batches))

    variants = [
        variant("ours", lambda folder: _job(frame, folder, null_sinks(1))),
        variant("ours, a file", lambda folder: _job(frame, folder, _file_sink(folder))),
        variant("Spark's file sink", lambda folder: spark_query(frame, "parquet", folder, _AT_ONCE)),
        variant("bare", lambda folder: bare_query(frame, folder, _AT_ONCE)),
        variant("ours, 2 sinks", lambda folder: _job(frame, folder, null_sinks(2))),
    ]
    bounds = [
        Bound("trigger_ms", "ours, a file", "Spark's file sink", at_most=1.15),
        Bound("trigger_ms", "ours", "Spark's file sink", at_most=1.15),
        Bound("cpu_s", "ours, a file", "Spark's file sink"),
        Bound("trigger_ms", "ours", "bare", at_most=1.3),
        Bound("add_batch_ms", "ours", "bare"),
        Bound("trigger_ms", "ours, 2 sinks", "ours"),
    ]
    notes = [
        f"rate-micro-batch, {_ROWS} rows in 2 partitions a batch; medians over {batches - _SETTLING} batches a round",
        f"the first {_SETTLING} batches of a query, and its start, are left out; files are Parquet",
    ]
    yield Plan(variants, bounds, notes)


def _job(frame: DataFrame, folder: Path, sinks: Mapping[str, Sink]) -> Start:
    return own_query(frame, sinks, folder, _AT_ONCE["processingTime"], [])


def _file_sink(folder: Path) -> Mapping[str, Sink]:
    backend = FilesBackend(FilesOptions(path=str(folder / "target"), format="parquet"))
    return {"file": Sink("file", "files", backend, staging="")}


def _query(start: Start, batches: int) -> Work:
    """Run a query until it has done so many batches, and take the times that Spark itself reports."""

    def work() -> Metrics:
        counted = [one["durationMs"] for one in run_query(start, batches)[_SETTLING:]]
        return {name: statistics.median(one[key] for one in counted) for name, key in _METRICS.items()}

    return work


BENCHMARK = Benchmark("epoch", "An epoch of small batches, beside Spark's file sink and a bare mapInArrow.", _open)
