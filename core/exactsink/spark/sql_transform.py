"""`[transform]`: a job's query over its source's frame, which has the name `source` in the query."""

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
    """A query. `key` is its key in the job's file."""

    key: str
    query: str

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return the query's frame. `frame` must be of a session that no other job uses.

        Raises ConfigError if Spark refuses the query, with line and position, or if the query reads no stream.
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
