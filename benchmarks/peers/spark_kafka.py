"""Spark's own Kafka sink, where its jars can be had and fit: there may be none for this Spark yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["COORDINATES", "why_not"]

COORDINATES = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"  # the newest that Maven Central has


def why_not(spark: SparkSession, bootstrap: str, topic: str) -> str:
    """Fetch the jars and write a row; gives what is in the way, or nothing."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark.sql(f"ADD JAR 'ivy://{COORDINATES}'")  # kept in Ivy's cache
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        spark.sql("SELECT 'trial' AS value").write.format("kafka").options(**options).save()
    except (PySparkException, Py4JError) as failure:
        return str(failure).strip().splitlines()[0][:300]
    return ""
