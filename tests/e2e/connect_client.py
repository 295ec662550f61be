"""A client of Spark Connect as a program: it prints what is refused, or what came of a batch run, or dies in it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from exactsink.contract import ConfigError, Event
from exactsink.spark import Job
from tests.e2e.jobs import ROWS_AN_EPOCH

__all__ = ["to_both"]


def refused(job: Job, spark: SparkSession, path: str) -> None:
    """Print the errors of a stream's two ways, and of one that tries at the server."""
    stream = spark.readStream.format("rate").load()
    for start in (lambda: job.start(stream), job.foreach_batch):
        try:
            start()
        except ConfigError as error:
            print(f"refused: {error}")

    def at_the_server(frame: DataFrame, batch_id: int) -> None:
        Job.from_toml(path).foreach_batch()(frame, batch_id)

    try:
        writer = stream.writeStream.foreachBatch(at_the_server)
        writer.option("checkpointLocation", job.config.job.checkpoint).start().awaitTermination(300)
    except StreamingQueryException as error:
        print(f"refused: {error}")


def write_run(path: str, spark: SparkSession, point: str = "") -> None:
    """Write a run of the job, and print its result; after `point` be killed."""

    def die(event: Event) -> None:
        if (event.name, event.edge) == (point, "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    job = Job.from_toml(path, [die])
    if not point:
        refused(job, spark, path)
    frame = spark.range(0, ROWS_AN_EPOCH, 1, 2).selectExpr("id", "concat('k', id % 3) AS kind", "id / 4 AS amount")
    print(job.write(frame, run="day"))


def to_both(frame: DataFrame) -> Mapping[str, DataFrame]:
    """Return for both sinks the same frame: a job's route."""
    return {"lake": frame, "table": frame}


if __name__ == "__main__":
    _, address, job_file, at = sys.argv
    write_run(job_file, SparkSession.builder.remote(address).getOrCreate(), at)
