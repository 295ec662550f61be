"""`[transform]`: a job's query over its source's frame, which it knows as `source`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from exactsink.contract import ConfigError
from exactsink.spark.errors import first_line
from exactsink.spark.versions import check_query

__all__ = ["SqlTransform"]

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
        session = frame.sparkSession
        query = self.query.strip().rstrip(";")
        frame.createOrReplaceTempView(_NAME)
        try:
            check_query(session, query)  # sql() would run a command, for example DROP
            made = session.sql(query)
        except AnalysisException as error:
            raise ConfigError(
                f"Spark refuses {self.key}", why=first_line(error, place=True), next="correct the query"
            ) from error
        if frame.isStreaming and not made.isStreaming:
            raise ConfigError(
                f"{self.key} gives the same rows for every batch",
                why=f"it does not read the table `{_NAME}`, which is the source's frame",
                next=f"SELECT ... FROM {_NAME}",
            )
        return made
