"""Throughput into PostgreSQL through Spark, a whole epoch with its commit, beside Spark's own JDBC append."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from benchmarks.cases.postgres_server import Served, serving
from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, row_frame
from exactsink.protocol.sinks import Sink

__all__ = ["BENCHMARK", "DRIVER"]

DRIVER = "org.postgresql:postgresql:42.7.14"
_BATCH_SIZE = 5_000
_JDBC = "Spark's JDBC"
_THREE = "id bigint PRIMARY KEY, name text, text text"
_TEN = (
    "id bigint PRIMARY KEY, customer int, name text, quantity smallint, amount float8, price numeric(12, 2), "
    "moment timestamptz, day date, paid boolean, text text"
)
_STRATEGIES: tuple[Literal["two_phase", "staged"], ...] = ("two_phase", "staged")


class _Target:
    """A table that variants fill: empty before each run, and checked after it, while the clock is stopped."""

    def __init__(self, served: Served, table: str, columns: str, frame: DataFrame, rows: int) -> None:
        served.make(table, columns)
        self.served = served
        self.table = table
        self.frame = frame
        self.rows = rows
        self._filled = 0

    def empty(self) -> None:
        """Check the rows of the run before, then empty the table."""
        found = self.served.count(self.table)
        assert found == self._filled, f"{found} rows are there, and {self._filled} were written"
        self.served.empty(self.table)
        self._filled = 0

    def filled(self) -> Metrics:
        """Record that a run is over."""
        self._filled = self.rows
        return {"rows": self.rows}


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(2_000_000)
    spark = setting.spark()
    spark.sql(f"ADD JAR 'ivy://{DRIVER}?transitive=false'")  # from Maven Central, kept in Ivy's cache
    with serving() as served:
        three = _Target(served, "three", _THREE, row_frame(spark, rows), rows)
        ten = _Target(served, "ten", _TEN, _ten_columns(spark, rows), rows)
        variants = [
            *(Variant(strategy, _ours(three, strategy, setting.folder / strategy)) for strategy in _STRATEGIES),
            Variant(_JDBC, _spark(three)),
            Variant("ten columns, two_phase", _ours(ten, "two_phase", setting.folder / "ten")),
            Variant(f"ten columns, {_JDBC}", _spark(ten)),
        ]
        bounds = [
            Bound("rows_per_s", "two_phase", _JDBC, at_least=1.8),
            Bound("rows_per_cpu_s", "two_phase", _JDBC),
            Bound("rows_per_s", "staged", _JDBC, at_least=1.0),
            Bound("rows_per_cpu_s", "staged", _JDBC),
            Bound("rows_per_s", "ten columns, two_phase", f"ten columns, {_JDBC}", at_least=1.8),
            Bound("rows_per_cpu_s", "ten columns, two_phase", f"ten columns, {_JDBC}"),
        ]
        notes = [
            f"{rows:,} rows (long as primary key, string, 100 characters), {PARTITIONS} partitions, two at a time",
            "ten columns: as wide, of numbers, times and texts",
            "rows are made in Spark, as cheaply as it can, and sent over TCP",
            f"{_JDBC}: {DRIVER}, batchsize {_BATCH_SIZE}, reWriteBatchedInserts; a transaction a partition",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)
        three.empty()
        ten.empty()


def _ten_columns(spark: SparkSession, rows: int) -> DataFrame:
    number = F.col("id")
    words = (F.hex(F.xxhash64("id", F.lit(place))) for place in range(3))
    return spark.range(0, rows, 1, PARTITIONS).select(
        "id",
        (number % 100_000).cast("int").alias("customer"),
        F.concat(F.lit("name-"), (number % 1000).cast("string")).alias("name"),
        (number % 97).cast("smallint").alias("quantity"),
        (number / 7).alias("amount"),
        (number / 8).cast("decimal(12,2)").alias("price"),
        F.timestamp_micros(number * 1_000_001 + 1_700_000_000_000_000).alias("moment"),
        F.date_add(F.lit("2024-01-01").cast("date"), (number % 900).cast("int")).alias("day"),
        (number % 2 == 0).alias("paid"),
        F.concat_ws(" ", *words).alias("text"),
    )


def _ours(target: _Target, strategy: Literal["two_phase", "staged"], folder: Path) -> Callable[[Path], Work]:
    sink = Sink("table", "postgres", target.served.backend(target.table, target.served.tcp, strategy), staging="")
    driver = EpochDriver({"table": sink}, folder)  # one for all rounds, because the table knows its journal

    def prepare(scratch: Path) -> Work:
        target.empty()
        epoch = FrameEpoch(driver, target.frame)

        def work() -> Metrics:
            assert list(epoch().values()) == [target.rows]
            return target.filled()

        return work

    return prepare


def _spark(target: _Target) -> Callable[[Path], Work]:
    options = {**target.served.jdbc, "dbtable": target.table, "batchsize": str(_BATCH_SIZE)}

    def prepare(scratch: Path) -> Work:
        target.empty()

        def work() -> Metrics:
            target.frame.write.format("jdbc").options(**options).mode("append").save()
            return target.filled()

        return work

    return prepare


BENCHMARK = Benchmark(
    "postgres_spark", "Rows a second into PostgreSQL through Spark, committed, beside Spark's JDBC append.", _open
)
