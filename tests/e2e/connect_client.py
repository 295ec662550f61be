"""A client of Spark Connect as a program: it prints what is refused, or what came of a batch run, or dies in it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from exactsink.contract import ConfigError, Event
from exactsink.spark import Job
from tests.e2e.jobs import ROWS_AN_EPOCH

__all__ = ["to_both"]


def refused(job: Job, spark: SparkSession) -> None:
    """Print the errors of a stream's two ways."""
    stream = spark.readStream.format("rate").load()
    for start in (lambda: job.start(stream), job.foreach_batch):
        try:
            start()
        except ConfigError as error:
            print(f"refused: {error}")


def write_run(path: str, spark: SparkSession, point: str = "") -> None:
    """Write a run of the job, and print its result; after `point` be killed."""

    def die(event: Event) -> None:
        if (event.name, event.edge) == (point, "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    job = Job.from_toml(path, [die])
    refused(job, spark)
    frame = spark.range(0, ROWS_AN_EPOCH, 1, 2).selectExpr("id", "concat('k', id % 3) AS kind", "id / 4 AS amount")
    print(job.write(frame, run="day"))


def to_both(frame: DataFrame) -> Mapping[str, DataFrame]:
    """Return for both sinks the same frame: a job's route."""
    return {"lake": frame, "table": frame}


def look(spark: SparkSession, seen: Path) -> None:
    """Run a stream until its function has written down what it knows of its query."""

    def batch(frame: DataFrame, number: int) -> None:
        known = [name for name in ("sparkContext", "_jsparkSession", "_jvm") if _has(frame.sparkSession, name)]
        seen.write_text(f"batch {number} in process {os.getpid()} knows {known}")

    def _has(session: SparkSession, name: str) -> bool:
        try:
            return getattr(session, name) is not None
        except Exception:
            return False

    with tempfile.TemporaryDirectory() as folder:
        writer = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().writeStream
        query = _started(writer.foreachBatch(batch).option("checkpointLocation", folder))
        while not seen.exists() and not query.awaitTermination(1):
            pass
        query.stop()
    print(f"client {os.getpid()}: {seen.read_text()}")


def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Start the query, also where the machine is so busy that the function's process misses Spark's ten seconds."""
    while True:
        try:
            return writer.start()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise


if __name__ == "__main__":
    _, address, job_or_file, what = sys.argv
    session = SparkSession.builder.remote(address).getOrCreate()
    look(session, Path(job_or_file)) if what == "look" else write_run(job_or_file, session, what)
