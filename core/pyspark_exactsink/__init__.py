"""`df.writeStream.format("exactsink")`: Spark 4 imports each `pyspark_*` package when it first looks for a data source.

Nothing is written through it: it says what to write instead. Light to import, for that reason.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from exactsink.contract import ConfigError

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Refuse every use, with the call that does what was meant. No row is read or written."""

    @classmethod
    def name(cls) -> str:
        """Return what Spark finds it by."""
        return "exactsink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """Refuse a stream. Raises ConfigError."""
        raise _instead("a stream is written by job.start(df)")

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse a batch. Raises ConfigError."""
        raise _instead('a batch frame is written by job.write(df, run="NAME")')

    def schema(self) -> NoReturn:
        """Refuse to be read. Raises ConfigError."""
        raise ConfigError(
            "exactsink is not a format to read",
            why="its sinks are ordinary tables, files and topics",
            next="read a sink with Spark's own format for it: spark.read.parquet, kafka, jdbc",
        )


def _instead(call: str) -> ConfigError:
    return ConfigError(
        f"exactsink is not a format of Spark: {call}",
        why="Spark commits a format by itself; exactsink decides an epoch once for all sinks of a job",
        next='from exactsink.spark import Job; job = Job.from_toml("job.toml")',
    )
