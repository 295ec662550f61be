"""Exactly-once jobs on Spark: `Job.from_toml(path).start(df)`. The only part of exactsink that imports pyspark.

Importing it raises ConfigError if Spark's version is not supported, because a later import could fail less clearly.
"""

from exactsink.spark.versions import check_version

check_version()

from exactsink.spark.job import Job  # noqa: E402

__all__ = ["Job"]
