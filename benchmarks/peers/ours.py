"""exactsink's side, as users have it: a job's file, `Job.from_toml`, `start`, every option at its default."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from benchmarks.peers.source import Source
from exactsink.job.config import JobConfig
from exactsink.job.config.model import JobSection, SinkSection
from exactsink.protocol.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from exactsink.spark.job import Job

__all__ = ["job_of_file", "job_of_sink", "stream_job", "triggers"]


def stream_job(spark: SparkSession, source: Source, make: Callable[[], Job]) -> list[int]:
    """Run a job until all of the source is read, with one epoch per trigger. Return each trigger's milliseconds."""
    job = make()
    try:
        query = job.start(source.stream(spark))
        query.awaitTermination()
        if query.epochs != source.epochs:
            raise RuntimeError(f"{query.epochs} epochs were done, and there are {source.epochs}")
        return triggers(query.recentProgress, source.epochs)
    finally:
        job.close()


def triggers(progress: Sequence[Any], epochs: int) -> list[int]:
    """Return each epoch's milliseconds, as Spark reports them."""
    taken = [one["durationMs"]["triggerExecution"] for one in progress if "addBatch" in one["durationMs"]]
    if len(taken) != epochs:
        raise RuntimeError(f"Spark reports {len(taken)} batches, and there are {epochs}")
    return taken


def job_of_file(folder: Path, backend: str, **options: object) -> Job:
    """Make a job with one sink from a file, as `exactsink run` does."""
    from exactsink.spark.job import Job

    document = {
        "job": {"name": _name(), "checkpoint": str(folder / "checkpoint")},
        "sinks": {"target": {"backend": backend, **options}},
    }
    file = folder / "job.toml"
    file.write_text(tomli_w.dumps(document))
    return Job.from_toml(file)


def job_of_sink(folder: Path, sink: Sink) -> Job:
    """Make a job with a sink that no plugin offers, as a yardstick."""
    from exactsink.spark.job import Job

    section = JobSection(name=_name(), checkpoint=str(folder / "checkpoint"))
    config = JobConfig(job=section, sinks={sink.name: SinkSection(backend=sink.kind)})
    return Job.of_sinks(config, {sink.name: sink})


def _name() -> str:
    return f"peers-{uuid.uuid4().hex[:12]}"
