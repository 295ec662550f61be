"""The rows of a bench: made, or taken once from the job's source, and kept as files, some for each epoch."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.bench.ways import Base
from exactsink.contract import ConfigError
from exactsink.job.config import JobConfig
from exactsink.spark.session import read_source
from exactsink.spark.versions import arrow_table

if TYPE_CHECKING:
    DataFrame = Any  # pyspark's own, which only exactsink.spark imports
    SparkSession = Any

__all__ = ["Rows", "make_rows"]

FILES = 2
"""The number of files, and so about the number of tasks, of an epoch."""

_LOOK_SECONDS = 1
_MADE = "id BIGINT, name STRING, text STRING"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for `epochs` epochs of `an_epoch` rows each, as Parquet files."""

    folder: Path
    epochs: int
    an_epoch: int
    schema: Any
    """Spark's schema of the rows."""
    about: str

    def stream(self, spark: SparkSession) -> DataFrame:
        """Read the rows as a source whose batches are the epochs."""
        reader = spark.readStream.format("parquet").schema(self.schema)
        return reader.option("maxFilesPerTrigger", FILES).load(str(self.folder))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Read all rows at once."""
        return spark.read.schema(self.schema).parquet(str(self.folder))


def make_rows(base: Base, spark: SparkSession, rows: int, epochs: int) -> Rows:
    """Make rows, or take them from the job's source. Raises ConfigError if the source has too few."""
    folder = base.folder / "source"
    if base.own_rows:
        _write(_made(rows * epochs), folder, rows, epochs)
        about = "made: a unique number, a short text, and a text of about 100 characters"
        return Rows(folder, epochs, rows, _MADE, about)
    schema, table = _taken(base.config, spark, base.folder / "taken", rows * epochs)
    an_epoch = min(rows, table.num_rows // epochs)
    if an_epoch < FILES:
        raise ConfigError(
            f"the job's source gave {table.num_rows} rows, too few for {epochs} epochs",
            why="a bench takes the rows that exist at its start, and needs one more epoch to warm up",
            next="add rows to the source, or choose fewer --epochs",
        )
    _write(table, folder, an_epoch, epochs)
    fewer = (
        "" if an_epoch == rows else f"; it had {table.num_rows:,}, so an epoch has fewer than the {rows:,} asked for"
    )
    return Rows(folder, epochs, an_epoch, schema, f"the first of the job's own source{fewer}")


def _made(count: int) -> pa.Table:
    """Make rows of about 130 bytes, whose text does not compress to almost nothing."""
    texts = [hashlib.blake2b(number.to_bytes(8, "big"), digest_size=50).hexdigest() for number in range(count)]
    names = [f"name-{number % 1000}" for number in range(count)]
    return pa.table({"id": pa.array(range(count), pa.int64()), "name": names, "text": texts})


def _taken(config: JobConfig, spark: SparkSession, folder: Path, most: int) -> tuple[Any, pa.Table]:
    """Take the first rows of the job's source, through its transform, with the bench's own checkpoint."""
    stream = read_source(config, spark)
    take = _Take(most)
    writer = stream.writeStream.foreachBatch(take).outputMode(config.job.output_mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder)).start()
    try:
        while take.left and not query.awaitTermination(_LOOK_SECONDS):
            pass
    except Exception as error:
        if take.left:
            why = str(error).partition("\n")[0]
            raise ConfigError("the job's source can't be read", why=why, next="exactsink check JOB.toml") from error
    finally:
        query.stop()
    if not take.tables:
        raise ConfigError("the job's source has no rows", next="add rows to the source, then run the bench again")
    return stream.schema, pa.concat_tables(take.tables)


class _Take:
    """Keep a stream's first rows."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.tables: list[pa.Table] = []

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if self.left:
            self.tables.append(arrow_table(frame.limit(self.left)))
            self.left -= self.tables[-1].num_rows


def _write(table: pa.Table, folder: Path, rows: int, epochs: int) -> None:
    """Write FILES files per epoch, with modification times in the order of the epochs."""
    folder.mkdir()
    for epoch in range(epochs):
        part = table.slice(epoch * rows, rows)
        first = -(-rows // FILES)
        for number, cut in enumerate((part.slice(0, first), part.slice(first))):
            path = folder / f"{epoch:06}-{number}.parquet"
            pq.write_table(cut, path)
            os.utime(path, (1_700_000_000 + epoch, 1_700_000_000 + epoch))
