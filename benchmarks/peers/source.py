"""The rows that both sides read: Parquet files of about 130 bytes a row, so many files and rows an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RECORDS", "ROWS", "Rows", "Source", "epochs_of", "make_source"]

_FILES = 2
"""The files of an epoch: one for each core."""

_START = 1_700_000_000_000_000  # microseconds


@dataclass(frozen=True, slots=True)
class Rows:
    """A kind of rows: its columns in the form of `Peer.java`, and a function that makes a file of rows."""

    columns: str
    make: Callable[[int, int], pa.Table]

    @property
    def ddl(self) -> str:
        """Return the columns as Spark's DDL."""
        return self.columns.replace(" text", " string")

    @property
    def table(self) -> str:
        """Return the columns of a PostgreSQL table, the first of them its primary key."""
        first, *others = self.columns.split(",")
        there = [f"{first} PRIMARY KEY", *others]
        return ", ".join(there).replace(" double", " float8").replace(" timestamp", " timestamptz")

    @property
    def names(self) -> list[str]:
        """Return the columns' names."""
        return [column.split()[0] for column in self.columns.split(",")]


@dataclass(frozen=True, slots=True)
class Source:
    """A folder of files, so many an epoch; `rows` were counted in them."""

    kind: Rows
    folder: Path
    rows: int
    epochs: int
    files_an_epoch: int = _FILES

    def stream(self, spark: SparkSession) -> DataFrame:
        """Read it as a stream, an epoch's files a trigger."""
        reader = spark.readStream.schema(self.kind.ddl).option("maxFilesPerTrigger", self.files_an_epoch)
        return reader.parquet(str(self.folder))

    @property
    def flink(self) -> dict[str, Any]:
        """Return the options with which a job of Flink's reads it."""
        return {"source": self.folder, "columns": self.kind.columns}

    @property
    def generator(self) -> dict[str, Any]:
        """Return the options with which Flink generates as many rows."""
        return {"rows": self.rows, "columns": self.kind.columns}

    @property
    def note(self) -> str:
        """Describe it."""
        return (
            f"{self.rows:,} rows ({self.kind.columns}), about 130 bytes each, {self.rows // self.epochs:,} an epoch; "
            f"all read the same Parquet files (snappy), {self.files_an_epoch} an epoch"
        )

    def in_larger_epochs(self) -> Source:
        """Return the same files in a quarter of the epochs, or in one."""
        epochs = max(1, self.epochs // 4)
        return replace(self, epochs=epochs, files_an_epoch=math.ceil(self.epochs * self.files_an_epoch / epochs))


def epochs_of(scale: float, epochs: int, rows: int) -> tuple[int, int]:
    """Scale the number of epochs first, down to two, and only then their rows."""
    count = max(2, round(epochs * scale))
    return count, max(100, min(rows, round(epochs * rows * scale / count)))


def make_source(kind: Rows, folder: Path, epochs: int, rows: int) -> Source:
    """Write the files of so many epochs of so many rows, and count the rows in them."""
    folder.mkdir()
    each = max(1, rows // _FILES)
    for number in range(epochs * _FILES):
        pq.write_table(kind.make(number * each, each), folder / f"{number:05}.parquet", row_group_size=each)
    counted = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    return Source(kind, folder, counted, epochs)


def _rows(start: int, count: int) -> pa.Table:
    ids = np.arange(start, start + count)
    columns = {
        "id": pa.array(ids),
        "customer": pa.array([f"customer-{number}" for number in range(1000)]).take(pa.array(ids % 1000)),
        "amount": pa.array(ids * 0.37),
        "price": pa.array(ids / 7),
        "moment": pa.array(_START + ids * 1_000_003, pa.timestamp("us", tz="UTC")),
        "text": _text(start, count, 84),
    }
    return pa.table(columns)


def _records(start: int, count: int) -> pa.Table:
    keys = pc.utf8_lpad(pa.array(np.arange(start, start + count)).cast(pa.string()), 8, "0")
    return pa.table({"key": keys, "value": _text(start, count, 120)})


def _text(seed: int, count: int, width: int) -> pa.Array:
    """Make random hexadecimal digits: texts that hardly shrink when compressed, and the same each time."""
    digits = np.random.default_rng(seed).bytes(count * width // 2).hex().encode()
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.tobytes()), pa.py_buffer(digits))


ROWS = Rows("id bigint,customer text,amount double,price double,moment timestamp,text text", _rows)
RECORDS = Rows("key text,value text", _records)
