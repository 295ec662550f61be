"""Write a participant's rows as files, one or more per partition folder, each in its format and with its size."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exactsink.contract import Fatal, Txn
from exactsink.toolkit.tabular.folders import check_folder, split
from exactsink.toolkit.tabular.json_lines import json_lines
from exactsink.toolkit.tabular.options import TabularOptions
from exactsink.toolkit.tabular.sizes import SizeGuess
from exactsink.toolkit.tabular.tables import CALENDAR, check_values

__all__ = ["Parts", "check_batch", "refuse_bad_rows"]

ROW_GROUP_ROWS = 1024 * 1024
BUFFERED_BYTES = 128 * 1024 * 1024
LOOKED_AT_ROWS = 20_000
"""How many of a file's first rows decide which columns get a dictionary: as many as one page of Spark's writer."""

_Out = TypeVar("_Out", bound=io.RawIOBase)
"""The output of one file, written from front to back. Its position counts the bytes."""


def check_batch(options: TabularOptions, batch: pa.RecordBatch) -> None:
    """Raise ValueError for a row that files can't hold: one value of a Parquet file can make all of it unreadable.

    In lines of text, a replacement character takes the place of bytes that are not UTF-8, as in Spark's own.
    """
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if options.format == "parquet" or name in options.partition_by:
            check_values(values, name)
        if name in options.partition_by:
            check_folder(values, name)


def refuse_bad_rows(txn: Txn, options: TabularOptions, batch: pa.RecordBatch) -> None:
    """Raise Fatal, in the task, for a row that files can't hold."""
    try:
        check_batch(options, batch)
    except ValueError as error:
        fix = "cast or filter such rows" + ', or set on_bad_row = "quarantine"' * (options.format == "parquet")
        raise Fatal(f"sink {txn.sink}: files can't hold a row", why=str(error), next=fix) from error


class Parts(Generic[_Out]):
    """Write rows of the shaped schema into files that the store opens and seals.

    `open_out(folder, number)` opens a partition folder's next file. Numbers begin at 0 and count the files of all
    folders, so that no two files share a number, even if a file system treats two folders as one. `seal_out(out, rows)`
    makes a complete file durable. A file gets no more rows once it has reached the target size; for Parquet, whose rows
    wait in memory, an estimate decides. After an error, only `discard` may be called.
    """

    def __init__(
        self,
        options: TabularOptions,
        schema: pa.Schema,
        open_out: Callable[[str, int], _Out],
        seal_out: Callable[[_Out, int], None],
    ) -> None:
        self._options = options
        names = options.partition_by
        self._schema = pa.schema([field for field in schema if field.name not in names], metadata=CALENDAR)
        self._open_out = open_out
        self._seal_out = seal_out
        self._open: dict[str, _Part[_Out]] = {}
        self._opened = 0
        self._guesses: dict[str, SizeGuess] = {}
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows. Rows of Parquet wait for full row groups, until all files together hold too much memory."""
        if batch.num_rows == 0:
            return
        for folder, rows in split(batch, self._options.partition_by):
            for piece in self._pieces(folder, rows):
                if folder not in self._open:
                    self._open[folder] = self._new_part(folder)
                self._open[folder].add(piece)
                self._open[folder].rows += piece.num_rows
                self._end_if_full(folder)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes > BUFFERED_BYTES:
            for folder in list(self._open):
                self._open[folder].flush()
                self._end_if_full(folder)
            self._waiting_bytes = 0

    def seal(self) -> None:
        """Write the rest, and seal the open files."""
        for folder in list(self._open):
            self._seal(folder)

    def discard(self) -> None:
        """Close the open files without sealing them. Idempotent."""
        for part in self._open.values():
            part.discard()

    def _new_part(self, folder: str) -> _Part[_Out]:
        out = self._open_out(folder, self._opened)
        self._opened += 1
        if self._options.format == "parquet":
            return _Parquet(out, self._schema, self._compression, self._guesses.get(folder))
        if self._options.format == "json":
            return _JsonLines(out)
        return _CsvLines(out, self._schema.names[0] if self._options.header else None)

    def _pieces(self, folder: str, rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Cut rows of a Parquet file into pieces, after each of which its estimated size is checked, if it has a
        target.
        """
        target = self._options.target_bytes
        if target is None or self._options.format != "parquet":
            return (rows,)
        if folder not in self._guesses:
            self._guesses[folder] = SizeGuess(target, self._sampled)
        return self._guesses[folder].pieces(rows)

    def _sampled(self, rows: pa.RecordBatch) -> int:
        """Return the encoded size of a row group of these rows."""
        out = pa.BufferOutputStream()
        with pq.ParquetWriter(out, self._schema, compression=self._compression) as parquet:
            parquet.write_batch(rows)
            return int(out.tell())

    @property
    def _compression(self) -> str:
        return self._options.compression or "snappy"

    def _end_if_full(self, folder: str) -> None:
        """Start another file for the folder's next rows, if this one has reached its size."""
        target = self._options.target_bytes
        if target is not None and self._open[folder].is_full(target):
            self._seal(folder)

    def _seal(self, folder: str) -> None:
        part = self._open[folder]
        part.finish()
        self._seal_out(part.out, part.rows)
        del self._open[folder]


class _Part(ABC, Generic[_Out]):
    """One file in a format."""

    def __init__(self, out: _Out) -> None:
        self.out = out
        self.rows = 0

    def is_full(self, target: int) -> bool:
        """Return whether the file has reached its size."""
        return self.out.tell() >= target

    @abstractmethod
    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, to be written now or at a flush."""

    @abstractmethod
    def flush(self) -> None:
        """Write the rows that wait."""

    def finish(self) -> None:
        """Write the rest."""
        self.flush()

    def discard(self) -> None:
        """Close without a sync."""
        self.out.close()


class _JsonLines(_Part[_Out]):
    """Rows as objects, one a line."""

    def add(self, batch: pa.RecordBatch) -> None:
        self.out.write(json_lines(batch))

    def flush(self) -> None:
        """Do nothing, because no rows wait."""


class _CsvLines(_Part[_Out]):
    """Text values, one a line, below the header if there is one."""

    def __init__(self, out: _Out, header: str | None) -> None:
        super().__init__(out)
        if header is not None:
            self.out.write(header.encode() + b"\n")

    def add(self, batch: pa.RecordBatch) -> None:
        values = batch.column(0)
        if values.null_count:
            raise Fatal(
                f"column {batch.schema.names[0]} holds {values.null_count} nulls",
                why="a line can't be null, and no row may be dropped",
                next="give the sink the frame's own columns; it makes the lines itself",
            )
        text = pa.large_string()  # 64-bit offsets: no batch overflows them
        lines = pa.LargeListArray.from_arrays([0, len(values)], values.cast(text))
        self.out.write(pc.binary_join(lines, pa.scalar("\n", text))[0].as_buffer())
        self.out.write(b"\n")

    def flush(self) -> None:
        """Do nothing, because no rows wait."""


class _Parquet(_Part[_Out]):
    """Row groups of at least ROW_GROUP_ROWS rows, except the last one and those flushed early for memory or size."""

    def __init__(self, out: _Out, schema: pa.Schema, compression: str, guess: SizeGuess | None = None) -> None:
        super().__init__(out)
        self._guess = guess
        self._schema = schema
        self._compression = compression
        self._batches: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._parquet: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._waiting_rows += batch.num_rows
        if self._guess is not None:
            self._guess.add(batch)
        if self._waiting_rows >= ROW_GROUP_ROWS or (self._guess is not None and self._guess.reaches(self.out.tell())):
            self.flush()

    def flush(self) -> None:
        if self._batches:
            rows = pa.Table.from_batches(self._batches, schema=self._schema)
            if self._parquet is None:
                self._parquet = self._opened(rows)
            before = self.out.tell()
            self._parquet.write_table(rows)
            self._batches, self._waiting_rows = [], 0
            if self._guess is not None:
                self._guess.flushed(self.out.tell() - before)

    def is_full(self, target: int) -> bool:
        return self._guess.is_full(self.out.tell()) if self._guess is not None else super().is_full(target)

    def finish(self) -> None:
        self.flush()
        assert self._parquet is not None, "a file is opened for a row"
        self._parquet.close()

    def discard(self) -> None:
        if self._parquet is not None:
            with suppress(OSError, pa.ArrowException):  # nobody will read this footer, and the disk may be full
                self._parquet.close()
        super().discard()

    def _opened(self, rows: pa.Table) -> pq.ParquetWriter:
        file, first = pa.PythonFile(self.out, mode="w"), rows.slice(0, LOOKED_AT_ROWS)
        dictionaries: bool | list[str] = True
        if not any(pa.types.is_nested(field.type) for field in self._schema):  # their leaves have other names
            dictionaries = [
                name for name, values in zip(first.column_names, first.columns, strict=True) if _shrinks(values)
            ]
        return pq.ParquetWriter(file, self._schema, compression=self._compression, use_dictionary=dictionaries)


def _shrinks(values: pa.ChunkedArray) -> bool:
    """Return whether a dictionary makes the values smaller. Arrow would make one until it is too large, in vain."""
    try:
        distinct = pc.count_distinct(values, mode="all").as_py()
    except pa.ArrowNotImplementedError:
        return True
    return bool(distinct * values.nbytes / len(values) + len(values) * distinct.bit_length() / 8 < values.nbytes)
