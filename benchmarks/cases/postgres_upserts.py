"""Upserts into PostgreSQL through Spark, half of them updates, beside the same statement by hand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from benchmarks.cases.postgres import DRIVER
from benchmarks.cases.postgres_server import Served, serving
from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, row_frame
from exactsink.protocol.sinks import Sink
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions

__all__ = ["LARGE", "SMALL"]

_COLUMNS = "id bigint, name text, text text"
_MERGE = """
    INSERT INTO upserted SELECT id, name, text FROM by_hand
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, text = excluded.text
"""
_OURS, _PSQL, _JDBC = "staged", "psql", "Spark's JDBC and the merge"


class _Target:
    """A table that has every second row before each run, with other values, and all rows after it."""

    def __init__(self, served: Served, frame: DataFrame, rows: int) -> None:
        served.make("upserted", _COLUMNS.replace("bigint", "bigint PRIMARY KEY"))
        served.make("by_hand", _COLUMNS)
        self.served, self.frame, self.rows = served, frame, rows

    def half(self) -> None:
        with psycopg.connect(self.served.conninfo, autocommit=True) as session:
            session.execute("TRUNCATE upserted, by_hand")
            numbers = f"generate_series(0, {self.rows // 2 - 1}) AS n"
            fill = f"INSERT INTO upserted SELECT 2 * n, 'before', repeat('-', 100) FROM {numbers}"
            session.execute(fill.encode())
            session.execute("VACUUM ANALYZE upserted")
            session.execute("CHECKPOINT")

    def whole(self) -> Metrics:
        return {"rows": self.rows}

    def counted(self, folder: Path) -> int:
        query = "SELECT count(*) FROM upserted WHERE name <> 'before'"
        with psycopg.connect(self.served.conninfo) as session:
            [(count,)] = session.execute(query).fetchall()
        return int(count)


def _prepared(target: _Target, work: Work) -> Callable[[Path], Work]:
    def prepare(scratch: Path) -> Work:
        target.half()
        return work

    return prepare


@contextmanager
def _open(setting: Setting, rows_at_most: int) -> Iterator[Plan]:
    rows = setting.scaled(rows_at_most)
    spark = setting.spark()
    spark.sql(f"ADD JAR 'ivy://{DRIVER}?transitive=false'")  # from Maven Central, kept in Ivy's cache
    with serving() as served:
        frame = row_frame(spark, rows).select((F.col("id") * 7919 % rows).alias("id"), "name", "text")
        target = _Target(served, frame, rows)
        file = served.server.folder / "rows.copy"
        _write_file(target, file)
        variants = [
            Variant(_OURS, _ours(target, setting.folder / "ours"), target.counted),
            Variant(_PSQL, _prepared(target, partial(_psql, target, file)), target.counted),
            Variant(_JDBC, _prepared(target, partial(_jdbc, target)), target.counted),
        ]
        bounds = [
            Bound(metric, _OURS, other, at_least=least if metric == "rows_per_s" else None)
            for other, least in ((_PSQL, 0.8), (_JDBC, 1.5))
            for metric in ("rows_per_s", "rows_per_cpu_s")
        ]
        notes = [
            f"{rows:,} rows (long as primary key, in no order, string, 100 characters), {PARTITIONS} partitions",
            "every second key stands",
            "psql: \\copy of a binary file into a table without an index, then INSERT .. SELECT .. ON CONFLICT",
            f"{_JDBC}: {DRIVER}, reWriteBatchedInserts, append into that table, then the same statement",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)


def _write_file(target: _Target, file: Path) -> None:
    """Write Spark's rows into a file, in the server's own format."""
    target.half()
    _jdbc(target)
    with psycopg.connect(target.served.conninfo) as session:
        session.execute(f"COPY by_hand TO '{file}' (FORMAT binary)".encode())


def _ours(target: _Target, folder: Path) -> Callable[[Path], Work]:
    url = target.served.tcp_url
    options = UpsertOptions.model_validate({"url": url, "table": "upserted", "keys": ("id",)})
    driver = EpochDriver({"table": Sink("table", "idempotent_upsert", UpsertBackend(options), staging="")}, folder)

    def prepare(scratch: Path) -> Work:
        target.half()
        epoch = FrameEpoch(driver, target.frame)

        def work() -> Metrics:
            assert list(epoch().values()) == [target.rows]
            return target.whole()

        return work

    return prepare


def _psql(target: _Target, file: Path) -> Metrics:
    statements = [f"\\copy by_hand FROM '{file}' (FORMAT binary)", _MERGE]
    command = ["psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--single-transaction", target.served.tcp_url]
    subprocess.run([*command, *(part for one in statements for part in ("--command", one))], check=True)
    return target.whole()


def _jdbc(target: _Target) -> Metrics:
    options = {**target.served.jdbc, "dbtable": "by_hand", "batchsize": "5000"}
    target.frame.write.format("jdbc").options(**options).mode("append").save()
    with psycopg.connect(target.served.tcp_url) as session:
        session.execute(_MERGE)
    return target.whole()


_SMALL = "Upserts into PostgreSQL, 200,000 rows an epoch, half of them updates, beside them by hand."
SMALL = Benchmark("postgres_upsert", _SMALL, partial(_open, rows_at_most=200_000))
LARGE = Benchmark("postgres_upsert_large", "The same with 2,000,000 rows.", partial(_open, rows_at_most=2_000_000))
