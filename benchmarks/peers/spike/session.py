"""Compile the spike and load it into Spark's JVM; a function for `foreachBatch` that writes by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from tests.servers.kafka_jars import jars

from benchmarks.peers.flink.session import PEER
from benchmarks.peers.java import compile_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Body", "KafkaSpike", "kafka_spike"]

Body = Callable[["DataFrame", int], None]
KafkaSpike = Callable[[Mapping[str, str], str], Body]
"""Takes a producer's settings and a topic; gives what writes a batch's rows."""


def kafka_spike(spark: SparkSession, folder: Path) -> KafkaSpike:
    """Load it, with the client of Kafka that Flink has. Its classes go into a new folder."""
    [client] = jars(PEER).glob("kafka-clients-*.jar")
    compile_java(Path(__file__).parent, f"{Path(pyspark.__file__).parent}/jars/*:{jars(PEER)}/*", folder)
    apart = folder / "apart" / "spike"  # beside the client, which the loader of all else must not see
    apart.mkdir(parents=True)
    (folder / "spike" / "Kafka.class").rename(apart / "Kafka.class")
    jvm: Any = spark._jvm
    shared: Any = spark._jsparkSession.sharedState().jarClassLoader().getParent()  # driver's and tasks' alike
    shared.addURL(jvm.java.io.File(str(folder)).toURI().toURL())
    jvm.spike.Epochs.load(str(client), str(apart.parent))

    def made(settings: Mapping[str, str], topic: str) -> Body:
        epochs = jvm.spike.Epochs(dict(settings), topic)
        return lambda frame, number: epochs.write(frame._jdf)

    return made
