"""Upserts into SQLite through Spark, half of them updates, beside sqlite3's `executemany` in one transaction."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, row_frame
from exactsink.protocol.sinks import Sink
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions

__all__ = ["LARGE", "SMALL"]

_TABLE = "CREATE TABLE upserted (id BIGINT NOT NULL, name TEXT, text TEXT, PRIMARY KEY (id))"
_UPSERT = """
    INSERT INTO upserted (id, name, text) VALUES (?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, text = excluded.text
"""
_OURS, _BY_ARROW, _READY = "staged", "executemany, rows by toArrow()", "executemany, rows in memory"
_Rows = Iterable[Sequence[Any]]


class _Target:
    """Copies of a database that has every second row, with other values. After a run it has all rows."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.rows, self._half = rows, folder / "half.db"
        with closing(sqlite3.connect(self._half)) as connection:
            connection.executescript(f"PRAGMA journal_mode = WAL; {_TABLE}")
            before = ((2 * number, "before", "-" * 100) for number in range(rows // 2))
            connection.executemany("INSERT INTO upserted VALUES (?, ?, ?)", before)
            connection.commit()

    def half(self, folder: Path) -> Path:
        return Path(shutil.copy(self._half, folder / "target.db"))

    def counted(self, folder: Path) -> int:
        with closing(sqlite3.connect(folder / "target.db")) as connection:
            [(found,)] = connection.execute("SELECT count(*) FROM upserted WHERE name <> 'before'")
        return int(found)


@contextmanager
def _open(setting: Setting, rows_at_most: int) -> Iterator[Plan]:
    rows = setting.scaled(rows_at_most, least=2)
    frame = row_frame(setting.spark(), rows).select((F.col("id") * 7919 % rows).alias("id"), "name", "text")
    target = _Target(setting.folder, rows)
    ready = list(_by_arrow(frame))
    variants = [
        Variant(_OURS, partial(_ours, target, frame), target.counted),
        Variant(_BY_ARROW, partial(_plain, target, partial(_by_arrow, frame)), target.counted),
        Variant(_READY, partial(_plain, target, lambda: ready), target.counted),
    ]
    bounds = [
        Bound(metric, _OURS, other, at_least=0.9 if metric == "rows_per_s" else None)
        for other in (_BY_ARROW, _READY)
        for metric in ("rows_per_s", "rows_per_cpu_s")
    ]
    notes = [
        f"{rows:,} rows (long as primary key, in no order, string, 100 characters), {PARTITIONS} partitions",
        "every second key stands, in a fresh copy of one file",
        f"SQLite {sqlite3.sqlite_version}, WAL; each transaction is synced, by all alike",
        f"{_READY}: without Spark, tuples that are in memory before the clock runs",
    ]
    yield Plan(variants, bounds, notes)


def _by_arrow(frame: DataFrame) -> Iterator[Sequence[Any]]:
    """Yield a frame's rows in the driver, after Spark has sent them in Arrow batches."""
    for batch in frame.toArrow().to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _ours(target: _Target, frame: DataFrame, folder: Path) -> Work:
    given = {"url": f"sqlite:///{target.half(folder)}", "table": "upserted", "keys": ["id"]}
    backend = UpsertBackend(UpsertOptions.model_validate(given))
    sink = Sink("upserted", "idempotent_upsert", backend, staging=str(folder / "staging"))
    epoch = FrameEpoch(EpochDriver({"upserted": sink}, folder), frame)

    def work() -> Metrics:
        assert list(epoch().values()) == [target.rows]
        return {"rows": target.rows}

    return work


def _plain(target: _Target, rows: Callable[[], _Rows], folder: Path) -> Work:
    file = target.half(folder)

    def work() -> Metrics:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_UPSERT, rows())
            connection.execute("COMMIT")
        return {"rows": target.rows}

    return work


_SMALL = "Upserts into SQLite, 200,000 rows an epoch, half of them updates, beside executemany in one transaction."
SMALL = Benchmark("sqlite_upsert", _SMALL, partial(_open, rows_at_most=200_000))
LARGE = Benchmark("sqlite_upsert_large", "The same with 2,000,000 rows.", partial(_open, rows_at_most=2_000_000))
