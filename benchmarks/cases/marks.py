"""The cost of a sink's mark for an epoch, in milliseconds, and beside an epoch of 100,000 rows through Spark.

It is the time in the mark's calls. For Kafka, which sends a mark's requests beside others, it is the time of a small
epoch minus the time of an epoch without a mark.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.cases import postgres_server
from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.kafka_broker import Target
from benchmarks.kafka_broker import serving as serving_kafka
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, row_frame
from exactsink.contract import Backend
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing.driver_run import hashed
from exactsink.toolkit.roads import MarkerCommitter
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_files.committer import FilesCommitter
from exactsink_files.marks import MarkFolder
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.options import KafkaOptions
from exactsink_postgres.committer import PostgresCommitter
from exactsink_postgres.own_tables import Marks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BENCHMARK"]

_ROWS = 100_000
_SMALL = 100
_PARTICIPANTS = 2  # as many tasks as run at a time, but one after the other; the slower marks count
_MOST_MS = 10
_MOST_SHARE = 0.05
_TABLE = "name text, text text"
_UPSERTED = f"id bigint PRIMARY KEY, {_TABLE}"
_GUARD = "exactsink_epoch BIGINT, exactsink_generation BIGINT"
_OF_COMMITTERS = ("mark", "put_birth", "trim_marks")
_CALLS: Sequence[tuple[type, Sequence[str]]] = (
    *((owner, _OF_COMMITTERS) for owner in (FilesCommitter, MarkerCommitter, PostgresCommitter)),
    (MarkFolder, ("read", "sync", "begin", "finish")),
    (Marks, ("create", "newest", "add", "proven", "trim")),
)
"""All calls that are only for marks."""


@dataclass(frozen=True, slots=True)
class _Road:
    """A backend and strategy with marks to be measured.

    `fresh(folder)` makes an empty target, with its backend. `filled` is called with the expected numbers of rows and
    participants. `unmarked` makes the same backend without marks, for a comparison.
    """

    name: str
    fresh: Callable[[Path], Backend]
    columns: tuple[str, ...] = ("id", "name", "text")
    filled: Callable[[int, int], object] = lambda rows, participants: None
    unmarked: Callable[[Backend], Backend] | None = None

    def driver(self, folder: Path) -> EpochDriver:
        return _driver(self.fresh(folder), folder)


def _driver(backend: Backend, folder: Path) -> EpochDriver:
    return EpochDriver({"sink": Sink("sink", "any", backend, staging=str(folder / "staging"))}, folder)


class _NoMark(KafkaOptions):
    """A Kafka sink that keeps no mark, although it has a topic."""

    @property
    def marked_topic(self) -> str | None:
        return None


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    times, rows = setting.scaled(20, least=3), setting.scaled(_ROWS)
    frame = row_frame(setting.spark(), rows).cache()
    assert frame.count() == rows
    with serving_kafka() as kafka, postgres_server.serving() as postgres, closing(Target(kafka)) as target:
        variants, bounds = [], []
        for road in _roads(target, postgres):
            marks, epoch = f"{road.name}: marks", f"{road.name}: epoch"
            variants += [
                Variant(marks, partial(_small_epochs if road.unmarked is None else _compared_epochs, road, times)),
                Variant(epoch, partial(_epochs_through_spark, road, frame, rows)),
            ]
            bounds += [Bound("ms", marks, at_most=_MOST_MS), Bound("ms", marks, epoch, at_most=_MOST_SHARE)]
        notes = [
            f"marks: time in their calls, {_PARTICIPANTS} participants of {_SMALL} rows; median of {times} epochs",
            "kafka: marks: an epoch's median time less that of epochs without marks, which it takes turns with",
            f"epoch: {rows:,} rows of about 130 bytes through Spark, committed; the median of 3 epochs",
            *kafka.notes,
            *postgres.notes,
        ]
        yield Plan(variants, bounds, notes)
    frame.unpersist()


def _roads(target: Target, postgres: postgres_server.Served) -> list[_Road]:
    def lake(folder: Path) -> Backend:
        return FilesBackend(FilesOptions(path=str(folder / "lake"), format="parquet"))

    def upsert(strategy: str, folder: Path) -> Backend:
        with closing(sqlite3.connect(folder / "db.sqlite")) as database:
            database.execute(f"CREATE TABLE rows ({_UPSERTED}{', ' + _GUARD if strategy == 'direct' else ''})")
        given = {"url": f"sqlite:///{folder}/db.sqlite", "table": "rows", "keys": ["id"], "strategy": strategy}
        return UpsertBackend(UpsertOptions.model_validate(given))

    def table(strategy: Any, folder: Path) -> Backend:
        name = f"t_{folder.name.replace('-', '_')}".lower()
        postgres.make(name, f"id bigint, {_TABLE}")  # each epoch has the same rows
        return postgres.backend(name, postgres.tcp, strategy)

    def topic(folder: Path) -> Backend:
        return target.served.backend(target.fresh())

    def unmarked(backend: Backend) -> Backend:
        assert isinstance(backend, KafkaBackend)
        options = backend.options
        return KafkaBackend(_NoMark(bootstrap_servers=options.bootstrap_servers, topic=options.topic))

    return [
        _Road("files", lake),
        _Road("upsert staged", partial(upsert, "staged")),
        _Road("upsert direct", partial(upsert, "direct")),
        _Road("two_phase", partial(table, "two_phase")),
        _Road("postgres staged", partial(table, "staged")),
        _Road("kafka", topic, ("key", "value"), target.filled, unmarked),
    ]


def _small_epochs(road: _Road, times: int, folder: Path) -> Work:
    driver, batch = road.driver(folder), _batch(road)

    def work() -> Metrics:
        with _timed() as seconds:
            taken = [_small_epoch(driver, batch, lambda: sum(seconds)) for _ in range(times + 1)]
        _left(road, len(taken))
        return {"ms": statistics.median(taken[1:]) * 1000}

    return work


def _compared_epochs(road: _Road, times: int, folder: Path) -> Work:
    assert road.unmarked is not None
    backend, batch = road.fresh(folder), _batch(road)
    drivers = [_driver(backend, folder / "marked"), _driver(road.unmarked(backend), folder / "unmarked")]

    def work() -> Metrics:
        taken = [[_small_epoch(driver, batch, time.perf_counter) for driver in drivers] for _ in range(times + 1)]
        _left(road, 2 * len(taken))
        marked, unmarked = (statistics.median(one) * 1000 for one in zip(*taken[1:], strict=True))
        return {"ms": marked - unmarked, "marked_ms": marked, "unmarked_ms": unmarked}

    return work


def _left(road: _Road, epochs: int) -> None:
    road.filled(epochs * _PARTICIPANTS * _SMALL, epochs * _PARTICIPANTS)


def _small_epoch(driver: EpochDriver, batch: pa.RecordBatch, clock: Callable[[], float]) -> float:
    """Run an epoch. Return the times of the driver, and of the slower participant."""
    backend = driver.sinks["sink"].backend
    spent: list[float] = []

    def write(plan: EpochPlan) -> list[Vote]:
        votes: list[Vote] = []
        for number in range(_PARTICIPANTS):
            before = clock()
            rows = {"sink": (batch, hashed(batch))}
            votes += write_partition(plan, {"sink": backend}, number, number, [rows], no_probe)
            spent.append(clock() - before)
        return votes

    before = clock()
    assert driver.epoch({"sink": batch.schema}, write)["sink"] == _PARTICIPANTS * _SMALL
    return clock() - before - (sum(spent) - max(spent))


def _epochs_through_spark(road: _Road, frame: DataFrame, rows: int, folder: Path) -> Work:
    chosen = (
        frame if "id" in road.columns else frame.selectExpr("encode(name, 'utf-8') key", "encode(text, 'utf-8') value")
    )
    epoch = FrameEpoch(road.driver(folder), chosen)

    def work() -> Metrics:
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            assert list(epoch().values()) == [rows]
            taken.append(time.perf_counter() - started)
        road.filled(len(taken) * rows, len(taken) * PARTITIONS)
        return {"ms": statistics.median(taken) * 1000}

    return work


def _batch(road: _Road) -> pa.RecordBatch:
    texts = [f"{number:0100}" for number in range(_SMALL)]
    columns = {"id": pa.array(range(_SMALL), pa.int64()), "name": pa.array(texts), "text": pa.array(texts)}
    columns |= {name: pa.array([text.encode() for text in texts]) for name in ("key", "value")}
    return pa.record_batch({name: columns[name] for name in road.columns})


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Collect the seconds of each call of `_CALLS`, but not of a call within another."""
    seconds: list[float] = []
    depth = 0

    def timed(real: Callable[..., Any], *given: Any, **named: Any) -> Any:
        nonlocal depth
        depth += 1
        started = time.perf_counter()
        try:
            return real(*given, **named)
        finally:
            depth -= 1
            if depth == 0:
                seconds.append(time.perf_counter() - started)

    kept = [(owner, name, owner.__dict__[name]) for owner, names in _CALLS for name in names]
    for owner, name, real in kept:
        setattr(owner, name, lambda *given, real=real, **named: timed(real, *given, **named))
    try:
        yield seconds
        assert seconds, "no mark was read or written"
    finally:
        for owner, name, real in kept:
            setattr(owner, name, real)


BENCHMARK = Benchmark("marks", "What a sink's mark costs: at most 10 ms, and 5 % of an epoch of 100,000 rows.", _open)
