"""A usual job with Spark's own sinks: `python -m benchmarks.peer_faults.spark_job FOLDER SPEC`.

SPEC is JSON: `kafka` and `jdbc` are these sinks' options, `files` and `delta` are folders, `iceberg` is a table. One
`foreachBatch` writes to them in this order; `kafka`, `delta` or `iceberg` alone is Spark's own stream sink. `kill` is a
file: if it does not exist yet, the job kills itself in the epoch of the fault, between its first write and its second.
`conf` is the session's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
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
"""Settings of a JVM's start. A running JVM has them or not."""
_COLUMNS = "id BIGINT, kind STRING, amount DOUBLE, tags MAP<STRING, INT>"
_CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}


def main(folder: Path, spec: Mapping[str, Any]) -> None:
    """Run the job until all rows of its source are written."""
    spark = _session(folder, spec.get("conf", CONNECTORS))
    if "iceberg" in spec:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {spec['iceberg']} ({_COLUMNS}) USING iceberg")
    reader = spark.readStream.schema(_COLUMNS)
    frame = held.hold(reader.option("maxFilesPerTrigger", PARTICIPANTS).json(str(folder / "source")))
    sinks = [name for name in spec if name in _WRITES]
    if sinks == ["kafka"]:
        writer = _records(frame).writeStream.format("kafka").options(**spec["kafka"])
    elif sinks == ["delta"]:
        writer = frame.writeStream.format("delta").option("path", spec["delta"])
    elif sinks == ["iceberg"]:
        writer = frame.writeStream.format("iceberg").option("path", spec["iceberg"])
    else:
        writer = frame.writeStream.foreachBatch(_each_batch(spec, sinks))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


def _session(folder: Path, conf: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for key, value in {**_CONF, **conf, **held.CONF, "spark.local.dir": str(folder / "spark")}.items():
        builder = builder.config(key, value.format(folder=folder))
    return builder.getOrCreate()


def _each_batch(spec: Mapping[str, Any], sinks: Sequence[str]) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, epoch: int) -> None:
        for place, name in enumerate(sinks):
            if place == 1 and "kill" in spec:
                _kill_once(Path(spec["kill"]), epoch)
            _WRITES[name](batch, spec[name])

    return write


def _in_jdbc(batch: DataFrame, options: Mapping[str, str]) -> None:
    batch.select("id", "kind", "amount").write.format("jdbc").options(**options).mode("append").save()


def _kill_once(fired: Path, epoch: int) -> None:
    if epoch == held.EPOCH and not fired.exists():
        fired.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _records(rows: DataFrame) -> DataFrame:
    return rows.select(F.col("id").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value"))


_WRITES: Mapping[str, Callable[[DataFrame, Any], None]] = {
    "kafka": lambda batch, options: _records(batch).write.format("kafka").options(**options).save(),
    "files": lambda batch, folder: batch.write.mode("append").parquet(folder),
    "delta": lambda batch, folder: batch.write.format("delta").mode("append").save(folder),
    "iceberg": lambda batch, table: batch.writeTo(table).append(),
    "jdbc": _in_jdbc,
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
