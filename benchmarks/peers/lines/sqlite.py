"""Upserts into SQLite: ours, staged, beside an executemany of each batch, and beside `direct`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.ours import job_of_file, stream_job
from benchmarks.peers.sides import SPARK, Sides, bounded
from benchmarks.peers.source import ROWS, epochs_of, make_source
from benchmarks.peers.spark_sinks import stream_through
from benchmarks.plan import Benchmark, Bound, Plan, Setting, Variant, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SQLITE"]

_TABLE = "rows"
_PLAIN, _DIRECT = "executemany", "ours, direct"


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 8, 50_000))
    spark = setting.spark()
    sides = Sides(source.rows, {})

    def ours(folder: Path, strategy: str = "staged") -> Work:
        options = {"url": f"sqlite:///{folder / 'target.db'}", "table": _TABLE, "keys": ["id"], "create": True}

        def work() -> None:
            stream_job(spark, source, lambda: job_of_file(folder, "idempotent_upsert", strategy=strategy, **options))

        return sides.timed(SPARK, work)

    def plain(folder: Path) -> Work:
        def work() -> None:
            with closing(sqlite3.connect(folder / "target.db", isolation_level=None, check_same_thread=False)) as there:
                for statement in ("journal_mode = WAL", "synchronous = FULL"):
                    there.execute(f"PRAGMA {statement}")
                there.execute(f"CREATE TABLE {_TABLE} ({', '.join(['id PRIMARY KEY', *ROWS.names[1:]])})")
                stream_through(spark, source, folder, lambda frame, number: _upsert(there, frame))

        return sides.timed(SPARK, work)

    sided: dict[str, Callable[[Path], Work]] = {"ours": ours, _PLAIN: plain, _DIRECT: partial(ours, strategy="direct")}
    variants = [Variant(name, prepare, _count) for name, prepare in sided.items()]
    bounds = [*bounded("ours", _PLAIN, 0.5), Bound("wall_s", "ours", _DIRECT, at_most=1.1)]
    notes = [
        source.note,
        f"{_PLAIN}: foreachBatch, toArrow, one INSERT ON CONFLICT DO UPDATE a batch; both WAL and FULL",
    ]
    yield Plan(variants, bounds, notes)


def _upsert(there: sqlite3.Connection, frame: DataFrame) -> None:
    names = ROWS.names
    others = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    columns = [column.to_pylist() for column in frame.withColumn("moment", frame.moment.cast("string")).toArrow()]
    there.execute("BEGIN IMMEDIATE")
    there.executemany(
        f"INSERT INTO {_TABLE} VALUES ({', '.join('?' * len(names))}) ON CONFLICT (id) DO UPDATE SET {others}",
        zip(*columns, strict=True),
    )
    there.execute("COMMIT")


def _count(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "target.db")) as there:
        return int(there.execute(f"SELECT count(*) FROM {_TABLE}").fetchone()[0])


SQLITE = Benchmark("sqlite", "Upserts into SQLite, staged, beside an executemany of each batch.", _open)
