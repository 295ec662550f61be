"""Files out of a stream: our sink by either writer, beside Spark's own stream sink, which syncs nothing.

All read the same Parquet files, two an epoch. Large epochs give rows a second, small ones the time of a trigger.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import varied_frame
from exactsink_files.backend import FilesBackend, FilesOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BENCHMARK"]

_AN_EPOCH = 2
_SETTLING = 5
_SMALL_ROWS = 1000
_LEAST = {"parquet": 0.95, "json": 0.9}
_MOST = 1.15

Format = Literal["parquet", "json"]
Writer = Literal["arrow", "spark"]


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    spark = setting.spark()
    rows = setting.scaled(2_000_000, least=8)
    large, small = setting.folder / "large", setting.folder / "small"
    epochs = _SETTLING + setting.scaled(20, least=3)
    _make_files(spark, large, rows, 8)
    _make_files(spark, small, epochs * _SMALL_ROWS, epochs * _AN_EPOCH)
    variants, bounds = [], []
    for form, least in _LEAST.items():
        for size, source, count in (("", large, rows), (", small epochs", small, epochs * _SMALL_ROWS)):
            yardstick = f"{form}, Spark's stream sink{size}"
            variants.append(_variant(yardstick, spark, source, count, form))
            for writer in ("arrow", "spark"):
                name = f"{form}, writer {writer}{size}"
                variants.append(_variant(name, spark, source, count, form, writer))
                binds = writer == "spark"
                if size:
                    bounds.append(Bound("trigger_ms", name, yardstick, at_most=_MOST if binds else None))
                else:
                    bounds.append(Bound("rows_per_s", name, yardstick, at_least=least if binds else None))
                    bounds.append(Bound("rows_per_cpu_s", name, yardstick))
    notes = [
        f"{rows:,} rows (long, string, 100 characters) in 4 epochs; small epochs: {epochs} of {_SMALL_ROWS} rows",
        f"trigger_ms: the median over a query's batches but its first {_SETTLING}; Parquet in snappy",
    ]
    yield Plan(variants, bounds, notes)


def _make_files(spark: SparkSession, folder: Path, rows: int, files: int) -> None:
    """Write the source's files, in the order of their times."""
    varied_frame(spark, rows).repartition(files).write.parquet(str(folder))
    for place, path in enumerate(sorted(folder.glob("*.parquet"))):
        os.utime(path, (1_700_000_000 + place,) * 2)


def _variant(
    name: str, spark: SparkSession, source: Path, rows: int, form: str, writer: Writer | None = None
) -> Variant:
    def prepare(folder: Path) -> Work:
        target = folder / "target"

        def work() -> Metrics:
            frame = spark.readStream.schema("id BIGINT, name STRING, text STRING")
            stream = frame.option("maxFilesPerTrigger", _AN_EPOCH).parquet(str(source))
            query = _theirs(stream, folder, form) if writer is None else _ours(stream, folder, form, writer)
            query.awaitTermination()
            written = spark.read.schema("id BIGINT").format(form).load(str(target)).count()
            assert written == rows, f"{written} rows instead of {rows}"
            times = [batch["durationMs"]["triggerExecution"] for batch in query.recentProgress if batch["numInputRows"]]
            return {"rows": rows, "trigger_ms": statistics.median(times[_SETTLING:] or times)}

        return work

    return Variant(name, prepare)


def _theirs(stream: DataFrame, folder: Path, form: str) -> StreamingQuery:
    writer = stream.writeStream.format(form).option("path", str(folder / "target"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def _ours(stream: DataFrame, folder: Path, form: str, writer: Writer) -> StreamingQuery:
    from exactsink.job.config import JobConfig
    from exactsink.job.config.model import JobSection, SinkSection
    from exactsink.protocol.sinks import Sink
    from exactsink.spark.job import Job

    options = FilesOptions.model_validate({"path": str(folder / "target"), "format": form, "writer": writer})
    sinks = {"files": Sink("files", "files", FilesBackend(options), staging="")}
    section = JobSection(name="benchmark", checkpoint=str(folder / "checkpoint"), trigger="available_now")
    job = Job(JobConfig(job=section, sinks={"files": SinkSection(backend="files")}), sinks)
    query: StreamingQuery = job.start(stream)._streaming  # type: ignore[assignment]
    return query


BENCHMARK = Benchmark("files_stream", "Files out of a stream, committed, beside Spark's own stream sink.", _open)
