"""Archives of loaded classes, with which the tests' JVMs start in two thirds of the time. `make setup` makes them.

They are in the Python environment that has the jars. A JVM ignores an archive of other jars, and no test needs one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPARK, BROKER = (Path(sys.prefix) / f"{name}.jsa" for name in ("spark", "kafka"))
_SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
def batch(frame, number):
    frame.mapInArrow(lambda batches: batches, frame.schema).groupBy().count().collect()
    frame.write.format("noop").mode("append").save()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 9).load()
query = rows.writeStream.foreachBatch(batch).trigger(availableNow=True).option("checkpointLocation", "checkpoint")
query.start().awaitTermination()
spark.range(9).write.json("source")
spark.read.schema("id LONG").json("source").selectExpr("xxhash64(*)", "to_json(struct(*))").collect()
spark.stop()
"""


def options(archive: Path) -> tuple[str, ...]:
    """Return a JVM's options for an archive, if it exists. The JVM silently ignores an archive of other jars."""
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if archive.exists() else ()


def main() -> None:
    """Make both archives: from a small job, and from a broker that began a transaction."""
    for archive in (SPARK, BROKER):
        archive.unlink(missing_ok=True)
    from tests.e2e.processes import ENVIRONMENT, QUICK_JAVA
    from tests.servers.kafka import JVM, own_kafka

    with tempfile.TemporaryDirectory() as folder, _dumped(SPARK) as dumping:
        Path(folder, "job.py").write_text(_SESSION)
        environment = {**os.environ, **ENVIRONMENT, "JAVA_TOOL_OPTIONS": " ".join((QUICK_JAVA, *dumping))}
        command = [str(Path(sys.executable).with_name("spark-submit")), "job.py"]  # the JVM's own end is waited for
        subprocess.run(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL, check=True)
    with _dumped(BROKER) as dumping, own_kafka(jvm=(*JVM, *dumping)) as broker:
        broker.stop()


@contextmanager
def _dumped(archive: Path) -> Iterator[tuple[str, ...]]:
    """Yield the options of a JVM that archives its loaded classes when it ends."""
    new = archive.with_suffix(".new")
    yield (f"-XX:ArchiveClassesAtExit={new}", "-Xlog:disable")
    new.rename(archive)


if __name__ == "__main__":
    main()
