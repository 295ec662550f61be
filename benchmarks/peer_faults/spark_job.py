"""A job as one writes it with Spark's own sinks: `python -m benchmarks.peer_faults.spark_job FOLDER SPEC`.

SPEC is JSON: `kafka` and `jdbc` are these sinks' options, `files` is a folder, where the rows go there; `kill` names a
file: where it is not there yet, the job kills itself in the epoch of the fault, between its first write and its second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from tests.e2e.jobs import PARTICIPANTS

from benchmarks.peer_faults import held
from benchmarks.peers.spark_kafka import COORDINATES

__all__ = ["CONNECTORS", "PACKAGES", "main"]

PACKAGES = f"{COORDINATES},org.postgresql:postgresql:42.7.14"
_BUNDLED = "com.google.code.findbugs:jsr305,org.scala-lang.modules:scala-parallel-collections_2.13"  # Spark has them
CONNECTORS = {"spark.jars.packages": PACKAGES, "spark.jars.excludes": _BUNDLED}
"""What a JVM is started with; one that runs has them or not."""
_CONF = {
    **CONNECTORS,
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}


def main(folder: Path, spec: Mapping[str, Any]) -> None:
    """Run the job until all that its source has is written."""
    spark = _session(folder)
    reader = spark.readStream.schema("id BIGINT, kind STRING, amount DOUBLE, tags MAP<STRING, INT>")
    frame = held.hold(reader.option("maxFilesPerTrigger", PARTICIPANTS).json(str(folder / "source")))
    if "jdbc" in spec:
        writer = frame.writeStream.foreachBatch(_each_batch(spec))
    else:
        writer = _records(frame).writeStream.format("kafka").options(**spec["kafka"])
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


def _session(folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for key, value in {**_CONF, **held.CONF, "spark.local.dir": str(folder / "spark")}.items():
        builder = builder.config(key, value.format(folder=folder))
    return builder.getOrCreate()


def _each_batch(spec: Mapping[str, Any]) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, epoch: int) -> None:
        if "kafka" in spec:
            _records(batch).write.format("kafka").options(**spec["kafka"]).save()
        if "files" in spec:
            batch.write.mode("append").parquet(spec["files"])
        if "kill" in spec:
            _kill_once(Path(spec["kill"]), epoch)
        batch.select("id", "kind", "amount").write.format("jdbc").options(**spec["jdbc"]).mode("append").save()

    return write


def _kill_once(fired: Path, epoch: int) -> None:
    if epoch == held.EPOCH and not fired.exists():
        fired.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _records(rows: DataFrame) -> DataFrame:
    return rows.select(F.col("id").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
