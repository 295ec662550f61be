"""The executor's side: a task attempt's Parquet files, which no reader finds before the table's log names them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from itertools import count, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exactsink.contract import BatchValidator, Committable, Fatal, Retryable, Txn, Writer
from exactsink.toolkit.storage import (
    AnyPath,
    DurableFile,
    ObjectFile,
    ObjectPath,
    new_file,
    storage_errors,
    sync_folders,
)
from exactsink_delta.log import RECORDS

__all__ = [
    "DeltaWriter",
    "RowValidator",
    "answering",
    "columns_of",
    "file_of",
    "files_of",
    "fitted",
    "remove",
    "text_of",
]

_BUFFERED_BYTES = 64 * 2**20
_INDEXED_COLUMNS = 32
_LONGEST_STATISTIC = 64


@dataclass(slots=True)
class _Part:
    """One Parquet file: a partition's values, its rows that are not written yet, and its footer once it is closed."""

    values: tuple[str | None, ...]
    file: DurableFile | ObjectFile
    parquet: pq.ParquetWriter
    footer: list[pq.FileMetaData]
    waiting: list[pa.Table]

    def flush(self) -> None:
        if self.waiting:
            self.parquet.write_table(pa.concat_tables(self.waiting))
            self.waiting.clear()


class DeltaWriter(Writer):
    """A task attempt's files, `TXN.N.parquet` with N from 0 on, and a record of it, by which a sweep finds them.

    They lie side by side, whatever their partition: in Delta the log says which one a file belongs to.
    """

    def __init__(self, root: AnyPath, txn: Txn, columns: pa.Schema) -> None:
        self._root, self._txn = root, txn
        self._partition_by: list[str] = json.loads(columns.metadata[b"partition_by"])
        self._columns = columns.remove_metadata()
        self._schema = pa.schema([field for field in columns if field.name not in self._partition_by])
        self._parts: dict[tuple[str | None, ...], _Part] = {}
        self._rows = self._waiting_bytes = 0
        self._record = root / RECORDS / txn.id
        with answering(root):
            try:
                if isinstance(self._record, ObjectPath):
                    self._record.create(b"")
                else:
                    new_file(self._record).close()  # first: no file of ours is without it
            except FileNotFoundError:
                why, fix = "the driver made it", "set path to a folder that the driver and all executors share"
                raise Fatal(f"{self._record.parent} does not exist on this executor", why=why, next=fix) from None

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            rows = fitted(batch, self._columns, self._partition_by)
        except ValueError as error:
            why, fix = str(error), "cast or filter such rows in the query, or set on_bad_row"
            raise Fatal(f"sink {self._txn.sink}: the table can't take a row", why=why, next=fix) from error
        for values, part in self._divided(rows):
            self._part(values).waiting.append(part)
        self._rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _BUFFERED_BYTES:
            self._flush()

    def pre_commit(self) -> Committable:
        self._flush()
        files = []
        with answering(self._root):
            for part in self._parts.values():
                part.parquet.close()
                size, _ = part.file.seal()
                values = dict(zip(self._partition_by, part.values, strict=True))
                files.append({"size": size, "values": values, "stats": _statistics(part.footer[0])})
            sync_folders([self._root, self._record.parent])
            if not self._record.exists():
                raise Retryable(f"{self._txn.id} was swept", next="start the job again, unless a newer driver runs")
        return Committable(self._txn, self._rows, json.dumps(files).encode())

    def abort(self) -> None:
        with answering(self._root):
            for part in self._parts.values():
                with suppress(OSError):  # a full disk: it has no room for the footer either
                    part.parquet.close()
                part.file.close()
            remove(self._root, self._txn.id)

    def _part(self, values: tuple[str | None, ...]) -> _Part:
        if values not in self._parts:
            footer = list[pq.FileMetaData]()
            with answering(self._root):
                path = file_of(self._root, self._txn.id, len(self._parts))
                file = ObjectFile(path) if isinstance(path, ObjectPath) else DurableFile(path)
                out = pa.PythonFile(file, mode="w")
                parquet = pq.ParquetWriter(out, self._schema, metadata_collector=footer)
            self._parts[values] = _Part(values, file, parquet, footer, [])
        return self._parts[values]

    def _flush(self) -> None:
        with answering(self._root):
            for part in self._parts.values():
                part.flush()
        self._waiting_bytes = 0

    def _divided(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """Divide rows by their partition, each in their order; the partition's columns are left out."""
        by = self._partition_by
        if not by:
            yield (), rows
            return
        places = rows.select(by).append_column("", pa.array(range(rows.num_rows)))
        for group in places.group_by(by, use_threads=False).aggregate([("", "list")]).to_pylist():
            yield tuple(text_of(group[name]) for name in by), rows.take(group["_list"]).drop_columns(by)


class RowValidator(BatchValidator):
    """Judges rows by the table's columns, as a task's ticket has them."""

    def __init__(self, schema: pa.Schema, rules: bytes) -> None:
        columns = pa.ipc.read_schema(pa.py_buffer(rules))
        self._by: list[str] = json.loads(columns.metadata[b"partition_by"])
        self._columns = columns.remove_metadata()
        super().__init__(self._refusal, schema)

    def _refusal(self, batch: pa.RecordBatch) -> str | None:
        try:
            fitted(batch, self._columns, self._by)
        except ValueError as error:
            return str(error)
        return None


def fitted(batch: pa.RecordBatch, columns: pa.Schema, partition_by: Sequence[str]) -> pa.Table:
    """Return rows in the table's types. Raises ValueError for what a column can't hold."""
    for field in columns:
        values = batch.column(field.name)
        if not field.nullable and values.null_count:
            raise ValueError(f"column {field.name} is NOT NULL")
        if field.name in partition_by and pa.types.is_string(field.type) and pc.any(pc.equal(values, "")).as_py():
            raise ValueError(f"Delta stores an empty text in a partition as NULL, in column {field.name}")
    return pa.Table.from_arrays([batch.column(field.name).cast(field.type) for field in columns], schema=columns)


def answering(root: AnyPath) -> AbstractContextManager[None]:
    """Raise an OSError of the block as Retryable, or as Fatal where a store refuses whoever asks."""
    return storage_errors(root, f"{root} can't be used")


def file_of(root: AnyPath, id: str, number: int) -> AnyPath:
    """Name a participant's file."""
    return root / f"{id}.{number}.parquet"


def files_of(root: AnyPath, id: str) -> list[AnyPath]:
    """List a participant's files: their numbers have no gap."""
    return list(takewhile(lambda path: path.exists(), (file_of(root, id, number) for number in count())))


def columns_of(path: AnyPath) -> pa.Schema:
    """Read a file's columns from its footer."""
    with path.reading() if isinstance(path, ObjectPath) else open(path, "rb") as file:
        return pq.read_schema(file)


def remove(root: AnyPath, id: str) -> None:
    """Remove a participant's files, the last one first so that no gap comes up, and then its record. Idempotent."""
    if isinstance(root, ObjectPath):  # a writer that was killed inside a large file leaves its upload
        for upload in root.uploads():
            if upload.name.startswith(f"{id}."):
                root.abort_below(upload)
    for path in reversed(files_of(root, id)):
        path.unlink(missing_ok=True)
    (root / RECORDS / id).unlink(missing_ok=True)


def _statistics(footer: pq.FileMetaData) -> Mapping[str, Any]:
    """Return what a file's footer knows of its columns, so that readers can pass over the file.

    Left out are nested columns, and the bounds of what has another order in Parquet (floats, for NaN) or is long.
    """
    low, high, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for place in range(min(footer.num_columns, _INDEXED_COLUMNS)):
        chunks = [footer.row_group(number).column(place) for number in range(footer.num_row_groups)]
        name, known = chunks[0].path_in_schema, [chunk.statistics for chunk in chunks]
        if "." in name or not all(one is not None and one.has_null_count for one in known):
            continue
        nulls[name] = sum(one.null_count for one in known)
        filled = [one for one in known if one.num_values]
        if not filled or not all(one.has_min_max for one in filled):
            continue
        with suppress(ValueError, OverflowError):  # a date that Python does not have
            bounds = min(one.min for one in filled), max(one.max for one in filled)
            if all(type(b) in (int, str, date, datetime) and len(str(b)) <= _LONGEST_STATISTIC for b in bounds):
                low[name], high[name] = (b if type(b) is int else text_of(b) for b in bounds)
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def text_of(value: Any) -> str | None:
    """Return a value as Delta's log has it."""
    if value is None:
        return None
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        utc = value.astimezone(timezone.utc).replace(tzinfo=None) if zone else value
        return utc.isoformat(timespec="microseconds") + zone
    text = str(value)
    return text.lower() if isinstance(value, bool) else text
