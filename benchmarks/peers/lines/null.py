"""What the framework costs by itself: a null sink beside Spark's noop sink, and beside a function that only reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.null_backend import null_sinks
from benchmarks.peers.ours import job_of_sink, stream_job
from benchmarks.peers.sides import SPARK, Sides, bounded
from benchmarks.peers.source import ROWS, epochs_of, make_source
from benchmarks.peers.spark_sinks import drain_batch, stream_into, stream_through
from benchmarks.plan import Benchmark, Plan, Setting, Variant, Work

__all__ = ["NULL"]

_NOOP, _BARE = "Spark noop", "bare mapInArrow"


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 8, 500_000))
    spark = setting.spark()
    sides = Sides(source.rows, {})

    def ours(folder: Path) -> Work:
        (sink,) = null_sinks(1).values()
        return sides.timed(SPARK, lambda: _nothing(stream_job(spark, source, lambda: job_of_sink(folder, sink))))

    def noop(folder: Path) -> Work:
        return sides.timed(SPARK, lambda: _nothing(stream_into(spark, source, folder, "noop")))

    def bare(folder: Path) -> Work:
        return sides.timed(SPARK, lambda: _nothing(stream_through(spark, source, folder, drain_batch)))

    variants = [Variant("ours", ours), Variant(_NOOP, noop), Variant(_BARE, bare)]
    notes = [source.note, "no target, so no rows to count in one: all report every epoch done"]
    yield Plan(variants, [*bounded("ours", _NOOP, 0.6), *bounded("ours", _BARE, 0.9)], notes)


def _nothing(triggers: list[int]) -> None:
    """Leave the triggers' times out: rows a second are what counts here."""


NULL = Benchmark("null", "A null sink through Job.start, beside Spark's noop sink.", _open)
