"""Exactly-once jobs on Spark: `Job.from_toml(path).start(df)`. The only part of exactsink that imports pyspark."""

from exactsink.spark.job import Job

__all__ = ["Job"]
