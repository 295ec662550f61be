"""PostgreSQL: ours in two phases beside Flink's JDBC sink with XA, Spark's JDBC append, and psql's copy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from benchmarks.cases.postgres import DRIVER
from benchmarks.cases.postgres_server import Served, serving
from benchmarks.peers.flink.session import VERSIONS, Flink, flink
from benchmarks.peers.ours import job_of_file, stream_job
from benchmarks.peers.sides import FLINK, SPARK, TOOL, Sides, bounded
from benchmarks.peers.source import ROWS, Source, epochs_of, make_source
from benchmarks.peers.spark_sinks import stream_through
from benchmarks.plan import Benchmark, Plan, Setting, Variant, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["POSTGRES"]

_TABLE = "rows"
_BATCH_SIZE = 5_000
_FLINK, _SPARK, _COPY = "Flink JDBC XA", "Spark JDBC append", "psql \\copy"


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 6, 250_000))
    spark = setting.spark()
    spark.sql(f"ADD JAR 'ivy://{DRIVER}?transitive=false'")  # from Maven Central, kept in Ivy's cache
    with serving() as served, flink(setting.folder / "flink") as peer:
        served.make(_TABLE, ROWS.table)
        variants = _variants(setting, source, served, peer)
        bounds = [*bounded("ours", _FLINK, 1.2), *bounded("ours", _SPARK, 1.3), *bounded("ours", _COPY, 0.75)]
        notes = [
            source.note,
            f"the first column is the primary key; over TCP; {_SPARK} and Flink: batches of {_BATCH_SIZE:,}, rewritten",
            f"{_COPY}: one session, the same rows from a CSV file made before",
            f"Flink: {', '.join(VERSIONS)}; Spark: {DRIVER}",
            *served.notes,
        ]
        yield Plan(variants, [*bounds, *bounded("ours", f"{_FLINK}, generator")], notes)


def _variants(setting: Setting, source: Source, served: Served, peer: Flink) -> list[Variant]:
    spark = setting.spark()
    sides = Sides(source.rows, {peer.pid: "flink", served.server.pid: "server"})
    text = _as_csv(source, setting.folder / "rows.csv")

    def ours(folder: Path) -> Work:
        served.empty(_TABLE)
        options = {"conninfo": served.tcp, "table": _TABLE, "strategy": "two_phase"}
        return sides.timed(
            SPARK, lambda: _nothing(stream_job(spark, source, lambda: job_of_file(folder, "postgres", **options)))
        )

    def flink_sink(rows: dict[str, object], folder: Path) -> Work:
        served.empty(_TABLE)
        there = {key: served.jdbc[key] for key in ("url", "user", "password")}
        job = {**rows, **there, "sink": "jdbc", "table": _TABLE, "checkpoints": folder / "checkpoints"}
        return sides.timed(FLINK, lambda: _nothing(peer.run(**job)))

    def spark_sink(folder: Path) -> Work:
        served.empty(_TABLE)
        options = {**served.jdbc, "dbtable": _TABLE, "batchsize": str(_BATCH_SIZE)}

        def append(frame: DataFrame, number: int) -> None:
            frame.write.format("jdbc").options(**options).mode("append").save()

        return sides.timed(SPARK, lambda: _nothing(stream_through(spark, source, folder, append)))

    def copy(folder: Path) -> Work:
        served.empty(_TABLE)
        command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", served.tcp]
        command += ["-c", f"\\copy {_TABLE} FROM '{text}' WITH (FORMAT csv)"]
        return sides.timed(TOOL, lambda: _nothing(subprocess.run(command, check=True, env={**os.environ, "TZ": "UTC"})))

    sinks = {
        "ours": ours,
        _FLINK: lambda folder: flink_sink(source.flink, folder),
        _SPARK: spark_sink,
        _COPY: copy,
        f"{_FLINK}, generator": lambda folder: flink_sink(source.generator, folder),
    }
    return [Variant(name, prepare, lambda folder: served.count(_TABLE)) for name, prepare in sinks.items()]


def _as_csv(source: Source, file: Path) -> Path:
    kind = pq.read_schema(next(source.folder.glob("*.parquet")))
    with csv.CSVWriter(file, kind, write_options=csv.WriteOptions(include_header=False)) as writer:
        for part in sorted(source.folder.glob("*.parquet")):
            table: pa.Table = pq.read_table(part)
            writer.write_table(table)
    return file


def _nothing(result: object) -> None:
    """Leave the result out: rows a second are what counts here."""


POSTGRES = Benchmark(
    "postgres", "PostgreSQL in two phases, beside Flink's JDBC XA, Spark's JDBC append, and \\copy.", _open
)
