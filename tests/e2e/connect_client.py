"""A client of Spark Connect as a program: prints what is refused, and what came of a batch run; or dies in it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from exactsink.cli.main import main
from exactsink.contract import ConfigError, Event, Retryable
from exactsink.spark import Job
from tests.e2e.jobs import ROWS_AN_EPOCH
from tests.servers.waiting import wait_until


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
    """Write a run of the job, and print its result; after `point` be killed. "stop" asks for its end in a task."""

    def die(event: Event) -> None:
        if (event.name, event.edge) == (point, "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    job = Job.from_toml(path, [die])
    if not point:
        refused(job, spark, path)
    frame = spark.range(0, ROWS_AN_EPOCH, 1, 2).selectExpr("id", "concat('k', id % 3) AS kind", "id / 4 AS amount")
    if point == "stop":
        stopped(job, frame, path)
    else:
        print(job.write(frame, run="day"))


def stopped(job: Job, frame: DataFrame, path: str) -> None:
    """Write a run whose tasks never end, ask for its stop as the command does, and print its error."""
    started = Path(f"{job.config.job.checkpoint}.started")

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        started.touch()
        while True:
            time.sleep(1)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(job.write, frame.mapInArrow(hold, frame.schema), run="day")
        wait_until(lambda: started.exists() or writing.done(), "a task")
        main(["stop", path, "--run", "day", "--within", "0"])
        try:
            writing.result()
        except Retryable as error:
            print(f"stopped: {error}")


def to_both(frame: DataFrame) -> Mapping[str, DataFrame]:
    """Return for both sinks the same frame: a job's route."""
    return {"lake": frame, "table": frame}


if __name__ == "__main__":
    _, address, job_file, at = sys.argv
    write_run(job_file, SparkSession.builder.remote(address).getOrCreate(), at)
