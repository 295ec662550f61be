"""The executor's side of a table: a task attempt's Parquet files, which no reader finds before the table lists them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.contract import Committable, Fatal, Retryable, Txn, Writer
from exactsink.toolkit.storage import (
    AnyPath,
    DurableFile,
    ObjectFile,
    ObjectPath,
    make_folder,
    sync_folders,
)
from exactsink.toolkit.tabular.tables import CALENDAR
from exactsink.toolkit.tabular.waiting import put_record, remove_waiting

__all__ = ["Layout", "TableWriter", "WrittenFile", "new_data_file"]

_BUFFERED_BYTES = 64 * 2**20

Values = tuple[Any, ...]
"""A partition: the values of its columns."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of a table's files: their columns, pyarrow's settings, and the order of rows in a row group."""

    columns: pa.Schema
    settings: Mapping[str, Any] = field(default_factory=dict)
    row_group_rows: int | None = None
    sort: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A durable file, for the vote."""

    path: AnyPath
    values: Values
    footer: pq.FileMetaData
    size: int
    sha256: str


@dataclass(slots=True)
class _Part:
    """One Parquet file: its partition, its rows that are not written yet, and its footer once it is closed."""

    path: AnyPath
    values: Values
    file: DurableFile | ObjectFile
    parquet: pq.ParquetWriter
    footer: list[pq.FileMetaData]
    waiting: list[pa.Table] = field(default_factory=list)

    @classmethod
    def begun(cls, path: AnyPath, values: Values, layout: Layout) -> _Part:
        file, columns = new_data_file(path), layout.columns.with_metadata(CALENDAR)
        out, footer = pa.PythonFile(file, mode="w"), list[pq.FileMetaData]()
        parquet = pq.ParquetWriter(out, columns, metadata_collector=footer, **layout.settings)
        return cls(path, values, file, parquet, footer)

    def flush(self, layout: Layout) -> None:
        if self.waiting:
            rows = pa.concat_tables(self.waiting)
            rows = rows.sort_by([*layout.sort]) if layout.sort else rows
            self.parquet.write_table(rows, row_group_size=layout.row_group_rows)
            self.waiting.clear()

    def sealed(self) -> WrittenFile:
        self.parquet.close()
        size, sha256 = self.file.seal()
        return WrittenFile(self.path, self.values, self.footer[0], size, sha256)


class TableWriter(Writer):
    """Write one file for each partition, `TXN.N.parquet` with N from 0 on, after records by which a sweep finds them.

    A subclass divides rows, places files and makes the vote. `fit` casts rows to the table's types, and raises
    ValueError for a value that does not fit. `option` names the folder that driver and executors must share.
    """

    def __init__(
        self, txn: Txn, layout: Layout, records: AnyPath, fit: Callable[[pa.RecordBatch], pa.Table], option: str
    ) -> None:
        self._txn, self._layout, self._records, self._fit = txn, layout, records, fit
        self._parts: dict[Values, _Part] = {}
        self._rows = self._waiting_bytes = self._recorded = 0
        with self.answering():
            try:
                put_record(records / txn.id)  # first, so that each file has a record
            except FileNotFoundError:
                fix = f"set {option} to a folder that the driver and all executors share"
                what = f"{records} does not exist on this executor"
                raise Fatal(what, why="the driver made it", next=fix) from None

    @abstractmethod
    def answering(self) -> AbstractContextManager[None]:
        """Raise an OSError of the block as Retryable, or as Fatal if only a person can help."""

    @abstractmethod
    def divided(self, rows: pa.Table) -> Iterable[tuple[Values, pa.Table]]:
        """Divide rows by their partition, in their order."""

    @abstractmethod
    def place(self, values: Values, name: str) -> AnyPath:
        """Return the path of a partition's file of this name."""

    @abstractmethod
    def vote(self, files: Sequence[WrittenFile]) -> bytes:
        """Return the payload of the vote."""

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            rows = self._fit(batch)
        except ValueError as error:
            fix = 'cast or filter such rows, or set on_bad_row = "quarantine"'
            raise Fatal(f"sink {self._txn.sink}: the table can't take a row", why=str(error), next=fix) from error
        parts = list(self.divided(rows))
        self._begin([values for values, _ in parts if values not in self._parts])
        for values, part in parts:
            self._parts[values].waiting.append(part)
        self._rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _BUFFERED_BYTES:
            self._flush()

    def pre_commit(self) -> Committable:
        self._flush()
        with self.answering():
            files = [part.sealed() for part in self._parts.values()]
            sync_folders([self._records, *(file.path.parent for file in files)])
            if not (self._records / self._txn.id).exists():
                raise Retryable(f"{self._txn.id} was swept", next="start the job again, unless a newer driver runs")
        return Committable(self._txn, self._rows, self.vote(files))

    def abort(self) -> None:
        with self.answering():
            for part in self._parts.values():
                with suppress(OSError):  # a full disk has no room for the footer
                    part.parquet.close()
                part.file.close()
            remove_waiting(self._records, self._txn.id)

    def _begin(self, partitions: Sequence[Values]) -> None:
        """Begin a file for each of these partitions, after a record that names the files."""
        if not partitions:
            return
        numbered = enumerate(partitions, len(self._parts))
        paths = [self.place(values, f"{self._txn.id}.{number}.parquet") for number, values in numbered]
        with self.answering():
            put_record(self._records / f"{self._txn.id}.{self._recorded}", paths)
            self._recorded += 1
            for path, values in zip(paths, partitions, strict=True):
                self._parts[values] = _Part.begun(path, values, self._layout)

    def _flush(self) -> None:
        with self.answering():
            for part in self._parts.values():
                part.flush(self._layout)
        self._waiting_bytes = 0


def new_data_file(path: AnyPath) -> DurableFile | ObjectFile:
    """Begin a file of a table, and make its folder if it is missing."""
    if isinstance(path, ObjectPath):
        return ObjectFile(path)
    make_folder(path.parent)
    return DurableFile(path)
