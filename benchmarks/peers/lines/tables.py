"""Iceberg and Delta tables: ours beside Spark's own stream sinks, both on a Spark that the tables' jars fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from benchmarks.peers.ours import job_of_file, stream_job
from benchmarks.peers.sides import SPARK, Sides, bounded
from benchmarks.peers.source import ROWS, epochs_of, make_source
from benchmarks.peers.spark_sinks import stream_into
from benchmarks.plan import Benchmark, Plan, Setting, Variant, Work

__all__ = ["DELTA", "DELTA_CONF", "ICEBERG", "ICEBERG_CONF"]

DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ICEBERG_CONF = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
_SPARK = "Spark stream sink"


def _line(
    name: str, options: Callable[[Path], Mapping[str, object]], count: Callable[[Path], int]
) -> Callable[[Setting], AbstractContextManager[Plan]]:
    @contextmanager
    def opened(setting: Setting) -> Iterator[Plan]:
        source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 8, 500_000))
        spark, sides = setting.spark(), Sides(source.rows, {})
        spark.conf.set("spark.sql.catalog.lake.warehouse", str(setting.folder / "lake"))

        def ours(folder: Path) -> Work:
            def work() -> None:
                stream_job(spark, source, lambda: job_of_file(folder, name, **options(folder / "out")))

            return sides.timed(SPARK, work)

        def theirs(folder: Path) -> Work:
            path = str(of_theirs(folder))
            if name == "iceberg":
                path = f"lake.db.`{folder.name}`"
                spark.sql(f"CREATE TABLE {path} ({ROWS.ddl}) USING iceberg")
            return sides.timed(SPARK, lambda: _nothing(stream_into(spark, source, folder, name, {"path": path})))

        def of_theirs(folder: Path) -> Path:
            return setting.folder / "lake" / "db" / folder.name

        variants = [
            Variant("ours", ours, lambda folder: count(folder / "out")),
            Variant(_SPARK, theirs, lambda folder: count(of_theirs(folder))),
        ]
        notes = [source.note, f"Spark {spark.version}; both tables unpartitioned, with their default settings"]
        yield Plan(variants, bounded("ours", _SPARK, 0.9), notes)

    return opened


def _nothing(triggers: list[int]) -> None:
    """Leave the triggers' times out: rows per second are the figure here."""


def _rows_of_iceberg(folder: Path) -> int:
    newest = max(folder.rglob("*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
    return StaticTable.from_metadata(str(newest)).scan().count()


def _rows_of_delta(folder: Path) -> int:
    counted: int = DeltaTable(folder).to_pyarrow_dataset().count_rows()
    return counted


DELTA = Benchmark(
    "delta",
    "A Delta table, beside Spark's own stream sink.",
    _line("delta", lambda folder: {"path": str(folder)}, _rows_of_delta),
)
ICEBERG = Benchmark(
    "iceberg",
    "An Iceberg table, beside Spark's own stream sink.",
    _line(
        "iceberg",
        lambda folder: {"uri": f"sqlite:///{folder}.db", "warehouse": str(folder), "table": "shop.rows"},
        _rows_of_iceberg,
    ),
)
