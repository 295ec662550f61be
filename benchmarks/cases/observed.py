"""The cost of logs and metrics for a small epoch: a job with Prometheus and a JSON log, and a job without both."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.null_backend import null_sinks
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant
from benchmarks.streams import own_query, run_query
from exactsink.observe.logs import JsonLines, LogContext, in_context
from exactsink.protocol.events import Subscriber

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BENCHMARK"]

_ROWS = 1000
_SINKS = 2
_SETTLING = 5
_LEVELS = {"plain": None, "observed": logging.INFO, "observed, each point": logging.DEBUG}


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    source = setting.spark().readStream.format("rate-micro-batch")
    frame = source.option("rowsPerBatch", _ROWS).option("numPartitions", 2).load()
    batches = _SETTLING + setting.scaled(50, least=5)

    def variant(name: str, level: int | None) -> Variant:
        return Variant(name, lambda folder: lambda: _query(frame, folder, batches, level))

    bounds = [
        Bound("trigger_ms", "observed", "plain", at_most=1.05),
        Bound("cpu_s", "observed", "plain", at_most=1.05),
        Bound("trigger_ms", "observed, each point", "plain"),
        Bound("cpu_s", "observed, each point", "plain"),
    ]
    notes = [
        f"rate-micro-batch, {_ROWS} rows in 2 partitions a batch, {_SINKS} null sinks",
        f"medians over {batches - _SETTLING} batches a round, the first {_SETTLING} left out",
        "observed: PrometheusMetrics, and a log in JSON into a file, at INFO or (each point) at DEBUG; nobody scrapes",
    ]
    yield Plan([variant(name, level) for name, level in _LEVELS.items()], bounds, notes)


def _query(frame: DataFrame, folder: Path, batches: int, level: int | None) -> Metrics:
    """Run a query, and return the median of the times that Spark reports."""
    with _observers(folder / "log.jsonl", level) as subscribers:
        start = own_query(frame, null_sinks(_SINKS), folder, "0 seconds", [], subscribers)
        counted = run_query(start, batches)[_SETTLING:]
    return {"trigger_ms": statistics.median(one["durationMs"]["triggerExecution"] for one in counted)}


@contextmanager
def _observers(log: Path, level: int | None) -> Iterator[Sequence[Subscriber]]:
    """Log into this file, and return the subscribers that a job then gets; none without a level."""
    if level is None:
        yield ()
        return
    from prometheus_client import CollectorRegistry

    from exactsink.observe.prometheus import PrometheusMetrics

    context, logger, handler = LogContext("benchmark"), logging.getLogger("exactsink"), logging.FileHandler(log)
    handler.setFormatter(JsonLines())
    before = logger.level
    logging.getLogger().addHandler(handler)
    logger.setLevel(level)
    try:
        with closing(PrometheusMetrics(CollectorRegistry())) as metrics, in_context(context):
            yield context, metrics
    finally:
        logger.setLevel(before)
        logging.getLogger().removeHandler(handler)
        handler.close()


BENCHMARK = Benchmark("observed", "A small epoch with metrics and a log in JSON, beside one with neither.", _open)
