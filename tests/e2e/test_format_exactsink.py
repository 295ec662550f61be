"""`format("exactsink")` on Spark 4: found by the name of its package, and answered with the call that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")

SAYS = {
    "stream": "exactsink is not a format of Spark: a stream is written by job.start(df)",
    "batch": 'exactsink is not a format of Spark: a batch frame is written by job.write(df, run="NAME")',
    "read": "exactsink is not a format to read",
}


@pytest.mark.parametrize("used_as", list(SAYS))
def test_the_format_says_what_to_write_instead(used_as: str, spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().writeStream.format("exactsink")
    with pytest.raises(PySparkException) as refused:
        if used_as == "stream":
            stream.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
        elif used_as == "batch":
            spark.range(2).write.format("exactsink").mode("append").save()
        else:
            spark.read.format("exactsink").load()
    [line] = [line for line in str(refused.value).splitlines() if line.startswith("exactsink.contract")]
    assert f"ConfigError: {SAYS[used_as]}: " in line
    assert "\n  next: " in str(refused.value)
