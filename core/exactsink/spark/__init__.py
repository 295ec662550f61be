"""Exactly-once jobs on Spark: `Job.from_toml(path).start(df)`. The only part of exactsink that imports pyspark.

Importing it raises ConfigError on a Spark that is not supported: a later import could end in an error of Python's own.
"""

from exactsink.spark.versions import check_version

check_version()

from exactsink.spark.job import Job  # noqa: E402

__all__ = ["Job"]
