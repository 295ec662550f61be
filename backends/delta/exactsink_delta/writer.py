"""The executor's side: a task attempt's Parquet files, which no reader finds before the table's log names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from itertools import count, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exactsink.contract import Committable, Fatal, Retryable, Txn, Writer
from exactsink.toolkit.storage import (
    AnyPath,
    DurableFile,
    ObjectFile,
    ObjectPath,
    new_file,
    storage_errors,
    sync_folders,
)
from exactsink.toolkit.tabular.tables import fitted
from exactsink_delta.log import RECORDS

__all__ = [
    "DeltaWriter",
    "answering",
    "columns_of",
    "file_of",
    "files_of",
    "fit_for",
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
    """Write a task attempt's files, `TXN.N.parquet` with N from 0 on, and a record, by which a sweep finds the files.

    All files are in one folder, whatever their partition: in Delta, the log assigns a file to its partition.
    """

    def __init__(self, root: AnyPath, txn: Txn, ticket: pa.Schema) -> None:
        self._root, self._txn = root, txn
        self._partition_by, self._fit = partitions_of(ticket), fit_for(ticket)
        self._schema = pa.schema([field for field in ticket if field.name not in self._partition_by])
        self._parts: dict[tuple[str | None, ...], _Part] = {}
        self._rows = self._waiting_bytes = 0
        self._record = root / RECORDS / txn.id
        with answering(root):
            try:
                if isinstance(self._record, ObjectPath):
                    self._record.create(b"")
                else:
                    new_file(self._record).close()  # first, so that each file of ours has a record
            except FileNotFoundError:
                why, fix = "the driver made it", "set path to a folder that the driver and all executors share"
                raise Fatal(f"{self._record.parent} does not exist on this executor", why=why, next=fix) from None

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            rows = self._fit(batch)
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
                size, sha256 = part.file.seal()
                values = dict(zip(self._partition_by, part.values, strict=True))
                stats = _statistics(part.footer[0])
                files.append({"size": size, "sha256": sha256, "values": values, "stats": stats})
            sync_folders([self._root, self._record.parent])
            if not self._record.exists():
                raise Retryable(f"{self._txn.id} was swept", next="start the job again, unless a newer driver runs")
        return Committable(self._txn, self._rows, json.dumps(files).encode())

    def abort(self) -> None:
        with answering(self._root):
            for part in self._parts.values():
                with suppress(OSError):  # a full disk has no room for the footer
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
        """Divide rows by their partition, in their order, without the partition columns."""
        by = self._partition_by
        if not by:
            yield (), rows
            return
        places = rows.select(by).append_column("", pa.array(range(rows.num_rows)))
        for group in places.group_by(by, use_threads=False).aggregate([("", "list")]).to_pylist():
            yield tuple(text_of(group[name]) for name in by), rows.take(group["_list"]).drop_columns(by)


def fit_for(ticket: pa.Schema) -> Callable[[pa.RecordBatch], pa.Table]:
    """Return a function that casts rows to the table's columns. It raises ValueError for a value that does not fit."""
    columns, partition_by = ticket.remove_metadata(), partitions_of(ticket)

    def fit(batch: pa.RecordBatch) -> pa.Table:
        rows = fitted(batch, columns, in_python=partition_by)
        for name in partition_by:
            if pa.types.is_string(rows.field(name).type) and pc.any(pc.equal(rows[name], "")).as_py():
                raise ValueError(f"Delta stores an empty text in a partition as NULL, in column {name}")
        return rows

    return fit


def partitions_of(ticket: pa.Schema) -> list[str]:
    """Return the table's partition columns."""
    names: list[str] = json.loads(ticket.metadata[b"partition_by"])
    return names


def answering(root: AnyPath) -> AbstractContextManager[None]:
    """Raise an OSError of the block as Retryable, or as Fatal if a store refuses the credentials."""
    return storage_errors(root, f"{root} can't be used")


def file_of(root: AnyPath, id: str, number: int) -> AnyPath:
    """Return the path of a participant's file."""
    return root / f"{id}.{number}.parquet"


def files_of(root: AnyPath, id: str) -> list[AnyPath]:
    """List a participant's files. Their numbers have no gap."""
    return list(takewhile(lambda path: path.exists(), (file_of(root, id, number) for number in count())))


def columns_of(path: AnyPath) -> pa.Schema:
    """Read a file's columns from its footer."""
    with path.reading() if isinstance(path, ObjectPath) else open(path, "rb") as file:
        return pq.read_schema(file)


def remove(root: AnyPath, id: str) -> None:
    """Remove a participant's files, from last to first so that no gap appears, and then its record. Idempotent."""
    if isinstance(root, ObjectPath):  # a writer that was killed inside a large file leaves its upload
        for upload in root.uploads():
            if upload.name.startswith(f"{id}."):
                root.abort_below(upload)
    for path in reversed(files_of(root, id)):
        path.unlink(missing_ok=True)
    (root / RECORDS / id).unlink(missing_ok=True)


def _statistics(footer: pq.FileMetaData) -> Mapping[str, Any]:
    """Return the column statistics in a file's footer, by which readers can skip the file.

    It leaves out nested columns, and bounds of values that are long or have another order in Parquet (floats: NaN).
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
    """Return a value as text in the form of Delta's log."""
    if value is None:
        return None
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        utc = value.astimezone(timezone.utc).replace(tzinfo=None) if zone else value
        return utc.isoformat(timespec="microseconds") + zone
    text = str(value)
    return text.lower() if isinstance(value, bool) else text
