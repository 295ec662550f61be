"""Run one job over the bench's rows, as a user would, and record its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from exactsink.bench.clocks import cpu_reading, cpu_seconds_since
from exactsink.bench.rows import Rows
from exactsink.bench.target import Place
from exactsink.bench.timeline import TimedEpoch, Timeline
from exactsink.bench.ways import Base, Way
from exactsink.job.config import JobConfig, bind_sinks
from exactsink.job.config.model import SinkSection
from exactsink.job.registry import Registry
from exactsink.protocol.sinks import Sink
from exactsink.spark.job import Job
from exactsink.spark.modules import load_route
from exactsink.spark.routes import Route

if TYPE_CHECKING:
    DataFrame = Any  # pyspark's own, which only exactsink.spark imports
    SparkSession = Any

__all__ = ["Copy", "MeasuredRun", "PreparedJob", "prepare", "run_job"]


@dataclass(frozen=True, slots=True)
class Copy:
    """One sink of a measured job: a way to write, and the copy that it writes to."""

    way: Way
    place: Place


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job over existing copies."""

    config: JobConfig
    sinks: Mapping[str, Sink]
    route: Route | None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The result of a job: its epochs in their order. The first one warms up, and is in no figure."""

    epochs: Sequence[TimedEpoch]
    source_rows: int
    """The number of rows that an epoch read."""

    @property
    def measured(self) -> Sequence[TimedEpoch]:
        return self.epochs[1:]

    @property
    def rows(self) -> int:
        """The rows that the measured epochs read."""
        return self.source_rows * len(self.measured)

    @property
    def rows_per_second(self) -> float:
        return self.rows / (self.epochs[-1].ended - self.epochs[0].ended)

    @property
    def cpu_us_per_row(self) -> float:
        return (self.epochs[-1].cpu - self.epochs[0].cpu) / self.rows * 1e6

    def written(self, sink: str) -> int:
        """Count the rows that were decided for a sink in all epochs."""
        return sum(epoch.rows[sink] for epoch in self.epochs)


def run_job(spark: SparkSession, rows: Rows, prepared: PreparedJob) -> MeasuredRun:
    """Run a job over all rows. Raises exactsink's errors unchanged."""
    timeline = Timeline(partial(cpu_seconds_since, cpu_reading()))
    with closing(Job.of_sinks(prepared.config, prepared.sinks, (timeline,))) as job:
        query = job.start(rows.stream(spark), prepared.route)
        try:
            query.awaitTermination()
        finally:
            query.stop()
    epochs = timeline.epochs()
    assert len(epochs) == rows.epochs, f"{len(epochs)} epochs of {rows.epochs}"
    return MeasuredRun(epochs, rows.an_epoch)


def _route(base: Base, copies: Sequence[Copy]) -> Route | None:
    """Return a route by which each copy gets the frame of the sink that it copies."""
    route = load_route(base.config)
    if route is None:
        return None

    def routed(frame: DataFrame) -> Mapping[str, DataFrame]:
        frames = route(frame)
        return {copy.place.sink: frames[copy.way.sink] for copy in copies}

    return routed


def prepare(base: Base, copies: Sequence[Copy], registry: Registry) -> PreparedJob:
    """Make the copies, and a job that writes to them: the user's job with other targets and another source.

    Its journal is in the bench's own files, and no exporter gets its metrics.
    """
    name, folder = copies[0].place.job, copies[0].place.folder
    made = {copy.place.sink: dict(copy.way.target.make(copy.place)) for copy in copies}
    own = {"name": name, "checkpoint": str(folder / name / "checkpoint"), "staging": None, "journal": None}
    given = {"transform": None, "route": None, "trigger": "available_now", "restarts": 0, "require": None}
    job = base.config.job.model_copy(update={**own, **given, "allow_early_rows": True})
    sections: Mapping[str, SinkSection] = {copy.place.sink: copy.way.section for copy in copies}
    options = {copy.place.sink: {**copy.way.options, **made[copy.place.sink]} for copy in copies}
    task_options = {copy.place.sink: {**copy.way.task_options, **made[copy.place.sink]} for copy in copies}
    config = base.config.model_copy(update={"job": job, "sinks": sections, "options": options})
    document = replace(base.document, values={"sinks": options}, task_values={"sinks": task_options})
    return PreparedJob(config, bind_sinks(config, document, registry), _route(base, copies))
