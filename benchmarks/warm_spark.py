"""One warm Spark session for all benchmarks of a run, and the rows that both sides of a comparison read."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from exactsink.spark.arrow_settings import UNCHECKED

__all__ = ["PARTITIONS", "WarmSpark", "row_frame", "varied_frame"]

PARTITIONS = 4
"""How many partitions a frame of rows has."""

_ROOT = Path(__file__).resolve().parent.parent
_CONF = {
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-Xss32m",  # Spark's regex for who was stopped in a batch wants that deep a stack
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",  # an error comes as an exception; a query that is ended on purpose would be logged too
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as ours and Flink write; Spark's default is INT96
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


class WarmSpark:
    """Starts Spark when it is first asked for, with two slots, and stops it when it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the session."""
        if self._session is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            for name, value in UNCHECKED.items():  # as `exactsink run` sets it
                os.environ.setdefault(name, value)
            # The workers import the null backend from here.
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
            for name in ("py4j.clientserver", "DataFrameQueryContextLogger"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            builder = SparkSession.builder.appName("benchmarks").master("local[2]")
            for key, value in {**_CONF, "spark.sql.warehouse.dir": str(self._folder / "warehouse")}.items():
                builder = builder.config(key, value)
            self._session = builder.config("spark.local.dir", str(self._folder / "spark")).getOrCreate()
        return self._session

    def close(self) -> None:
        """Stop what was started."""
        if self._session is not None:
            self._session.stop()


def row_frame(spark: SparkSession, rows: int, partitions: int = PARTITIONS) -> DataFrame:
    """Make rows of about 130 bytes out of nothing: a long, a short string, a string of 100 characters."""
    number = spark.range(0, rows, 1, partitions)
    return number.select(
        "id",
        F.concat(F.lit("name-"), (F.col("id") % 1000).cast("string")).alias("name"),
        F.lpad(F.col("id").cast("string"), 100, "0123456789abcdef").alias("text"),
    )


def varied_frame(spark: SparkSession, rows: int) -> DataFrame:
    """Make such rows of text that does not shrink to nothing: files then hold what was written."""
    number = spark.range(0, rows, 1, PARTITIONS)
    words = (F.hex(F.xxhash64("id", F.lit(place))) for place in range(6))
    return number.select(
        "id",
        F.concat(F.lit("name-"), (F.col("id") % 1000).cast("string")).alias("name"),
        F.concat_ws(" ", *words).alias("text"),
    )
