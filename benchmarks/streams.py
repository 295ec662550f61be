"""A streaming query as users start it, through `Job.start`, and the times that Spark reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactsink.contract import Event
from exactsink.protocol.events import Subscriber
from exactsink.protocol.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from exactsink.spark.query import Query

__all__ = ["own_query", "run_query"]

_POLL_S = 0.2


def own_query(
    frame: DataFrame,
    sinks: Mapping[str, Sink],
    folder: Path,
    trigger: str,
    rows: list[int],
    subscribers: Sequence[Subscriber] = (),
) -> Callable[[], Query]:
    """Return the start of a job of exactsink. It appends each epoch's decided rows of the first sink to `rows`."""
    from exactsink.job.config import JobConfig
    from exactsink.job.config.model import JobSection, SinkSection
    from exactsink.spark.job import Job

    def heard(event: Event) -> None:
        if (event.name, event.edge) == ("return", "before"):
            rows.append(next(iter(event.fields["rows"].values())))

    sections = {name: SinkSection(backend=sink.kind) for name, sink in sinks.items()}
    section = JobSection(name="benchmark", checkpoint=str(folder / "checkpoint"), trigger=trigger)
    return lambda: Job.of_sinks(JobConfig(job=section, sinks=sections), sinks, (heard, *subscribers)).start(frame)


def run_query(start: Callable[[], Query], batches: int) -> list[Any]:
    """Run a query until Spark has reported so many batches, and return these reports."""
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
