"""Throughput into Kafka through Spark, a whole epoch with its commit, beside a bare loop and beside at least once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.kafka_broker import Served, Target, serving
from benchmarks.kafka_yardsticks import AtLeastOnce, BareLoop
from benchmarks.peers.sides import SPARK, Sides
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from exactsink.protocol.sinks import Sink
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.options import KafkaOptions

__all__ = ["BENCHMARK"]

_TASKS = 2
_VALUE = 120
_BARE = "bare loop"
_PRICE = 1.1

Chosen = Literal["plain", "fast"]


class _Run:
    """The shared parts of all variants: the rows, and the present topic."""

    def __init__(self, served: Served, spark: SparkSession, rows: int) -> None:
        self.served = served
        self.target = Target(served)
        self.frame = _frame(spark, rows)
        self.rows = rows

    def timed(self, work: Callable[[], None], transactions: int) -> Work:
        """Return the work, with the CPU time of all processes."""

        def filled() -> Metrics:
            work()
            return self.target.filled(self.rows, transactions)

        return Sides(self.rows, {self.served.server.pid: "server"}).timed(SPARK, filled)


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(6_000_000, least=10_000)
    spark = setting.spark()
    with serving() as served:
        run = _Run(served, spark, rows)
        variants = [
            Variant("plain", _ours(run, KafkaBackend, "plain", _TASKS)),
            Variant("fast", _ours(run, KafkaBackend, "fast", _TASKS)),
            Variant(_BARE, _bare(run)),
            Variant("plain, at least once", _ours(run, AtLeastOnce, "plain", 0)),
        ]
        notes = [
            f"{rows:,} rows (a key of up to 7 bytes, a value of {_VALUE}), made in Spark, {_TASKS} tasks at a time",
            f"{_BARE}: mapInArrow, produce() in a loop, no callback, poll per batch, flush, commit_transaction",
            "all that use librdkafka have the same settings of it",
            "at least once: our own plain writer, idempotent, without a transaction and without a commit by the driver",
            *served.notes,
        ]
        yield Plan(variants, _bounds(), notes)
        run.target.close()


def _bounds() -> list[Bound]:
    return [
        Bound("rows_per_s", "plain", _BARE, at_least=0.95),
        Bound("rows_per_cpu_s", "plain", _BARE),
        Bound("rows_per_s", "fast", "plain", at_least=1.2),
        Bound("rows_per_cpu_s", "fast", "plain"),
        Bound("wall_s", "plain", "plain, at least once", at_most=_PRICE),
        Bound("rows_per_s", "plain"),
        Bound("rows_per_s", "fast"),
    ]


def _frame(spark: SparkSession, rows: int) -> DataFrame:
    """Generate keys and values in binary, as Kafka's are, so that no variant has to encode texts."""
    number = F.col("id").cast("string")
    value = F.lpad(number, _VALUE, "0123456789abcdef").cast("binary")
    return spark.range(0, rows, 1, _TASKS).select(number.cast("binary").alias("key"), value.alias("value"))


def _ours(
    run: _Run, kind: Callable[[KafkaOptions], KafkaBackend], writer: Chosen, transactions: int
) -> Callable[[Path], Work]:
    def prepare(scratch: Path) -> Work:
        backend = kind(run.served.options(run.target.fresh(), writer=writer))
        driver = EpochDriver({"topic": Sink("topic", "kafka", backend, staging="")}, scratch)
        epoch = FrameEpoch(driver, run.frame)

        def work() -> None:
            assert list(epoch().values()) == [run.rows]

        return run.timed(work, transactions)

    return prepare


def _bare(run: _Run) -> Callable[[Path], Work]:
    def prepare(scratch: Path) -> Work:
        loop = BareLoop.like(run.served.options(run.target.fresh()), f"bare-{uuid.uuid4().hex}")

        def work() -> None:
            counted = run.frame.mapInArrow(loop, "rows bigint").collect()
            assert sum(row["rows"] for row in counted) == run.rows

        return run.timed(work, _TASKS)

    return prepare


BENCHMARK = Benchmark(
    "kafka_spark", "Rows a second into Kafka through Spark, committed, beside a bare loop and at least once.", _open
)
