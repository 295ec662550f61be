"""Streaming queries as users start them: ours through `Job.start`, Spark's own, and the times that Spark reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.null_backend import drain
from exactsink.contract import Event
from exactsink.protocol.events import Subscriber
from exactsink.protocol.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Start", "bare_query", "own_query", "run_query", "spark_query"]

Start = Callable[[], Any]
"""Start a query, and return it."""

_POLL_S = 0.2


def own_query(
    frame: DataFrame,
    sinks: Mapping[str, Sink],
    folder: Path,
    trigger: str,
    rows: list[int],
    subscribers: Sequence[Subscriber] = (),
) -> Start:
    """Return the start of our job; each epoch's decided rows, those of its first sink, are put into `rows`."""
    from exactsink.job.config import JobConfig
    from exactsink.job.config.model import JobSection, SinkSection
    from exactsink.spark.job import Job

    def heard(event: Event) -> None:
        if (event.name, event.edge) == ("return", "before"):
            rows.append(next(iter(event.fields["rows"].values())))

    sections = {name: SinkSection(backend=sink.kind) for name, sink in sinks.items()}
    section = JobSection(name="benchmark", checkpoint=str(folder / "checkpoint"), trigger=trigger)
    return lambda: Job.of_sinks(JobConfig(job=section, sinks=sections), sinks, (heard, *subscribers)).start(frame)


def spark_query(frame: DataFrame, format: str, folder: Path, trigger: Mapping[str, Any]) -> Start:
    """Return the start of a query into one of Spark's own sinks, its files below the folder."""
    writer = frame.writeStream.format(format).option("checkpointLocation", str(folder / "checkpoint"))
    return lambda: writer.option("path", str(folder / "target")).trigger(**trigger).start()


def bare_query(frame: DataFrame, folder: Path, trigger: Mapping[str, Any]) -> Start:
    """Return the start of a query whose batches a `mapInArrow` drains."""

    def body(batch: DataFrame, batch_id: int) -> None:
        batch.mapInArrow(drain, "rows bigint").collect()

    writer = frame.writeStream.foreachBatch(body).option("checkpointLocation", str(folder / "checkpoint"))
    return lambda: writer.trigger(**trigger).start()


def run_query(start: Start, batches: int) -> list[Any]:
    """Run a query until Spark has reported so many batches, and return what it reports of each."""
    query = start()
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1:
            if query.awaitTermination(_POLL_S):
                break
    finally:
        query.stop()
    done = [one for one in query.recentProgress if "addBatch" in one["durationMs"]]
    if [one["batchId"] for one in done[:batches]] != list(range(batches)):
        raise RuntimeError(f"Spark reports batches {[one['batchId'] for one in done]}, and {batches} were asked for")
    return done[:batches]
