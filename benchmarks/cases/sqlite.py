"""Upserts into SQLite through Spark, whole epochs with their commits, beside a plain loop of `executemany`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, row_frame
from exactsink.protocol.sinks import Sink
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions

__all__ = ["BENCHMARK", "by_arrow"]

_EPOCHS = 2
_TABLE = "CREATE TABLE t (id BIGINT NOT NULL, name TEXT, text TEXT, PRIMARY KEY (id))"
_UPSERT = """
    INSERT INTO t (id, name, text) VALUES (?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, text = excluded.text
"""
_LOOP, _BY_ARROW = "executemany", "executemany, by Arrow"
_STRATEGIES = ("staged", "direct")


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(50_000)
    frame = row_frame(setting.spark(), rows)
    frames = [frame.withColumn("id", F.col("id") + F.lit(epoch * rows)) for epoch in range(_EPOCHS)]
    variants = [
        *(Variant(strategy, _ours(frames, strategy, rows)) for strategy in _STRATEGIES),
        Variant(_LOOP, _plain(frames, rows, DataFrame.toLocalIterator)),
        Variant(_BY_ARROW, _plain(frames, rows, by_arrow)),
    ]
    bounds = [
        Bound("rows_per_s", "staged", _LOOP, at_least=0.5),
        Bound("rows_per_cpu_s", "staged", _LOOP),
        Bound("rows_per_s", "staged", _BY_ARROW),
        Bound("rows_per_cpu_s", "staged", _BY_ARROW),
        Bound("wall_s", "staged", "direct", at_most=1.1),
        Bound("cpu_s", "staged", "direct"),
    ]
    notes = [
        f"{_EPOCHS} epochs of {rows:,} new rows (long as primary key, string, 100 characters), {PARTITIONS} partitions",
        f"SQLite {sqlite3.sqlite_version}, WAL; each transaction is synced, by all alike",
        f"{_LOOP}: a transaction an epoch, the driver binds the rows of toLocalIterator(), or of toArrow()",
    ]
    yield Plan(variants, bounds, notes)


def _ours(frames: Sequence[DataFrame], strategy: str, rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        file = folder / "target.db"
        given = {"url": f"sqlite:///{file}", "table": "t", "keys": ["id"], "create": True, "strategy": strategy}
        backend = UpsertBackend(UpsertOptions.model_validate(given))
        driver = EpochDriver({"t": Sink("t", "idempotent_upsert", backend, staging=str(folder / "staging"))}, folder)
        epochs = [FrameEpoch(driver, frame) for frame in frames]

        def work() -> Metrics:
            for epoch in epochs:
                assert list(epoch().values()) == [rows]
            return _counted(file, rows)

        return work

    return prepare


def _plain(
    frames: Sequence[DataFrame], rows: int, read: Callable[[DataFrame], Iterable[Sequence[Any]]]
) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        file = folder / "target.db"

        def work() -> Metrics:
            with closing(sqlite3.connect(file, isolation_level=None)) as connection:
                connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {_TABLE}")
                for frame in frames:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany(_UPSERT, read(frame))
                    connection.execute("COMMIT")
            return _counted(file, rows)

        return work

    return prepare


def by_arrow(frame: DataFrame) -> Iterator[Sequence[Any]]:
    """Yield a frame's rows, as the driver has them once Spark has sent them in Arrow batches."""
    for batch in frame.toArrow().to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _counted(file: Path, rows: int) -> Metrics:
    with closing(sqlite3.connect(file)) as connection:
        [(found,)] = connection.execute("SELECT count(*) FROM t")
    assert found == _EPOCHS * rows, f"{found} rows are there, and {_EPOCHS * rows} were written"
    return {"rows": found}


BENCHMARK = Benchmark("sqlite", "Upserts a second into SQLite through Spark, beside a plain loop.", _open)
