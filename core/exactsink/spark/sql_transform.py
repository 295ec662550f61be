"""`[transform]`: a job's query over its source's frame, which it knows as `source`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from exactsink.contract import ConfigError
from exactsink.spark.errors import first_line

__all__ = ["SqlTransform", "session_of_its_own"]

_NAME = "source"


@dataclass(frozen=True, slots=True)
class SqlTransform:
    """A query; `key` is where the job's file has it."""

    key: str
    query: str

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return the query's frame; `frame` is of a session that no other job has.

        Raises ConfigError for what Spark refuses, with its line and position, and for what reads no stream.
        """
        session: Any = frame.sparkSession
        query = self.query.strip().rstrip(";")
        frame.createOrReplaceTempView(_NAME)
        try:
            session._jsparkSession.sessionState().sqlParser().parseQuery(query)  # sql() would run a command, DROP say
            made: DataFrame = session.sql(query)
        except AnalysisException as error:
            raise ConfigError(f"Spark refuses {self.key}", why=first_line(error), next="correct the query") from error
        if frame.isStreaming and not made.isStreaming:
            raise ConfigError(
                f"{self.key} gives the same rows for every batch",
                why=f"it does not read the table `{_NAME}`, which is the source's frame",
                next=f"SELECT ... FROM {_NAME}",
            )
        return made


def session_of_its_own(spark: SparkSession) -> SparkSession:
    """Return a session with this one's settings, functions and views, in which a new view is seen by nobody else."""
    cloned: Any = spark
    return SparkSession(spark.sparkContext, cloned._jsparkSession.cloneSession())
