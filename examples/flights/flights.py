"""The job's transform."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention


def with_date(frame: DataFrame) -> DataFrame:
    """Add the day of the flight as a date."""
    return frame.withColumn("date", F.make_date("year", "month", "day"))
