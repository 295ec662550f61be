"""Spark's own Kafka sink, if there are fitting jars. There may be none for this Spark yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.servers.kafka_jars import JarSet, jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["COORDINATES", "why_not"]

_VERSION = "4.2.0"  # the newest that Maven Central has
COORDINATES = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_VERSION}"
_JARS = JarSet(f"spark-sql-kafka-{_VERSION}", (COORDINATES,))
_NOT_SPARKS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
"""The jars that Spark lacks. It has all their other dependencies."""


def why_not(spark: SparkSession, bootstrap: str, topic: str) -> str:
    """Fetch the jars and write a row. Return the reason if that fails, or nothing."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        for name in _NOT_SPARKS:
            for jar in jars(_JARS).glob(f"{name}*.jar"):
                spark.sql(f"ADD JAR '{jar}'")
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        spark.sql("SELECT 'trial' AS value").write.format("kafka").options(**options).save()
    except (PySparkException, Py4JError, RuntimeError) as failure:
        return " ".join(str(failure).split())[:300]
    return ""
