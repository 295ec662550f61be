"""Files: ours beside Flink's FileSink and Spark's own stream sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq

from benchmarks.peers.flink.session import VERSIONS, Flink, flink
from benchmarks.peers.ours import job_of_file, stream_job
from benchmarks.peers.sides import FLINK, SPARK, Sides, bounded
from benchmarks.peers.source import ROWS, Source, epochs_of, make_source
from benchmarks.peers.spark_sinks import stream_into
from benchmarks.plan import Benchmark, Bound, Plan, Setting, Variant, Work

__all__ = ["JSON", "PARQUET", "count_files"]

Format = Literal["json", "parquet"]

_FLINK, _SPARK = "Flink FileSink", "Spark stream sink"


def _line(
    format: Format, over_flink: float | None, over_spark: float
) -> Callable[[Setting], AbstractContextManager[Plan]]:
    @contextmanager
    def opened(setting: Setting) -> Iterator[Plan]:
        source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 8, 500_000))
        with flink(setting.folder / "flink") as peer:
            variants = _variants(setting, source, peer, format)
            bounds = [*bounded("ours", _FLINK, over_flink), *bounded("ours", _SPARK, over_spark)]
            bounds += [Bound("megabytes", "ours", _SPARK), *bounded("ours", f"{_FLINK}, generator")]
            yield Plan(variants, bounds, [source.note, f"Flink: {', '.join(VERSIONS)}"])

    return opened


def _variants(setting: Setting, source: Source, peer: Flink, format: Format) -> list[Variant]:
    spark, sides = setting.spark(), Sides(source.rows, {peer.pid: "flink"})

    def ours(options: dict[str, object]) -> Callable[[Path], Work]:
        def prepare(folder: Path) -> Work:
            def work() -> dict[str, float]:
                stream_job(
                    spark,
                    source,
                    lambda: job_of_file(folder, "files", path=str(folder / "out"), format=format, **options),
                )
                return _size(folder)

            return sides.timed(SPARK, work)

        return prepare

    def spark_sink(folder: Path) -> Work:
        def work() -> dict[str, float]:
            stream_into(spark, source, folder, format, {"path": str(folder / "out")})
            return _size(folder)

        return sides.timed(SPARK, work)

    def flink_sink(rows: dict[str, object]) -> Callable[[Path], Work]:
        def prepare(folder: Path) -> Work:
            job = {**rows, "sink": format, "target": folder / "out", "checkpoints": folder / "checkpoints"}

            def work() -> dict[str, float]:
                peer.run(**job)
                return _size(folder)

            return sides.timed(FLINK, work)

        return prepare

    sinks = {
        "ours": ours({}),
        _FLINK: flink_sink(source.flink),
        _SPARK: spark_sink,
        f"{_FLINK}, generator": flink_sink(source.generator),
    }
    return [
        Variant(name, prepare, lambda folder: count_files(folder / "out", format)) for name, prepare in sinks.items()
    ]


def _size(folder: Path) -> dict[str, float]:
    return {"megabytes": sum(file.stat().st_size for file in _visible(folder / "out")) / 1e6}


def _visible(target: Path) -> list[Path]:
    """Name what a reader sees: neither hidden nor of a sink's own log. Flink's files have no suffix."""
    return [file for file in target.iterdir() if file.is_file() and not file.name.startswith((".", "_"))]


def count_files(target: Path, format: Format) -> int:
    """Count the rows that a reader sees."""
    files = _visible(target)
    if format == "parquet":
        return sum(pq.read_metadata(file).num_rows for file in files)
    return sum(file.read_bytes().count(b"\n") for file in files)


JSON = Benchmark("json", "JSON lines, beside Flink's FileSink and Spark's stream sink.", _line("json", 1.2, 0.9))
PARQUET = Benchmark(
    "parquet", "Parquet, beside Flink's FileSink and Spark's stream sink.", _line("parquet", None, 0.95)
)
