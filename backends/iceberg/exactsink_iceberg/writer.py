"""The executor's side: a task attempt's Parquet files, which no reader finds before a snapshot names them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict
from pyiceberg.io.pyarrow import (
    _get_parquet_writer_kwargs,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from exactsink.contract import Committable, Fatal, Retryable, Txn, Writer
from exactsink.toolkit.storage import (
    AnyPath,
    DurableFile,
    ObjectFile,
    ObjectPath,
    new_file,
    path_of,
    storage_errors,
    sync_folders,
)
from exactsink.toolkit.tabular.tables import fitted
from exactsink_iceberg.durable_io import new_data_file, path_at
from exactsink_iceberg.partitions import divided
from exactsink_iceberg.votes import BOUNDS, NUMBERS, VotedFile, vote

__all__ = ["IcebergWriter", "Ticket", "answering", "fit_for", "remove"]

_BUFFERED_BYTES = 64 * 2**20
_ROW_GROUP = "write.parquet.row-group-limit"


class Ticket(BaseModel):
    """The driver's description of the table for tasks, which never query the catalog."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    location: str
    records: str
    properties: Mapping[str, str]
    columns: Schema
    spec: PartitionSpec
    sort: tuple[tuple[str, Literal["ascending", "descending"]], ...] = ()


@dataclass(slots=True)
class _Part:
    """One Parquet file: its partition, its rows that are not written yet, and its footer once it is closed."""

    path: str
    values: tuple[Any, ...]
    file: DurableFile | ObjectFile
    parquet: pq.ParquetWriter
    footer: list[pq.FileMetaData]
    waiting: list[pa.Table]


class IcebergWriter(Writer):
    """Write a task attempt's files in the table's layout, and records of them, by which a sweep finds the files."""

    def __init__(self, txn: Txn, ticket: Ticket) -> None:
        self._txn, self._ticket = txn, ticket
        self._records = path_of(ticket.records)
        self._columns, self._fit = ticket.columns.as_arrow(), fit_for(ticket)
        self._places = load_location_provider(ticket.location, dict(ticket.properties))
        self._parts: dict[tuple[Any, ...], _Part] = {}
        self._rows = self._waiting_bytes = self._recorded = 0
        with answering(self._records):
            try:
                self._record(txn.id, "")  # first, so that each file has a record
            except FileNotFoundError:
                why, fix = "the driver made it", "set warehouse to a folder that the driver and all executors share"
                raise Fatal(f"{self._records} does not exist on this executor", why=why, next=fix) from None

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            rows = self._fit(batch)
        except ValueError as error:
            fix = "cast or filter such rows in the query, or set on_bad_row"
            raise Fatal(f"sink {self._txn.sink}: the table can't take a row", why=str(error), next=fix) from error
        parts = list(divided(rows, self._ticket.spec, self._ticket.columns))
        self._begin([values for values, _ in parts if values not in self._parts])
        for values, part in parts:
            self._parts[values].waiting.append(part)
        self._rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _BUFFERED_BYTES:
            self._flush()

    def pre_commit(self) -> Committable:
        self._flush()
        voted = list[VotedFile]()
        with answering(self._records):
            for part in self._parts.values():
                part.parquet.close()
                voted.append(self._voted(part, *part.file.seal()))
            sync_folders([self._records, *(path_at(part.path).parent for part in self._parts.values())])
            if not (self._records / self._txn.id).exists():
                raise Retryable(f"{self._txn.id} was swept", next="start the job again, unless a newer driver runs")
        return Committable(self._txn, self._rows, vote(voted))

    def abort(self) -> None:
        with answering(self._records):
            for part in self._parts.values():
                with suppress(OSError):  # a full disk has no room for the footer
                    part.parquet.close()
                part.file.close()
            remove(self._records, self._txn.id)

    def _begin(self, partitions: Sequence[tuple[Any, ...]]) -> None:
        """Begin a file for each of these partitions, after a record that names the files."""
        if not partitions:
            return
        spec, columns, first = self._ticket.spec, self._ticket.columns, len(self._parts)
        paths = [
            self._places.new_data_location(
                f"{self._txn.id}.{first + number}.parquet", _Placed(spec, columns, values) if values else None
            )
            for number, values in enumerate(partitions)
        ]
        with answering(self._records):
            self._record(f"{self._txn.id}.{self._recorded}", "\n".join(paths))
            self._recorded += 1
            settings = _get_parquet_writer_kwargs(dict(self._ticket.properties))
            for path, values in zip(paths, partitions, strict=True):
                footer, file = list[pq.FileMetaData](), new_data_file(path_at(path))
                out = pa.PythonFile(file, mode="w")
                parquet = pq.ParquetWriter(out, self._columns, metadata_collector=footer, **settings)
                self._parts[values] = _Part(path, values, file, parquet, footer, [])

    def _record(self, name: str, text: str) -> None:
        path = self._records / name
        if isinstance(path, ObjectPath):
            path.create(text.encode())
            return
        with new_file(path) as file:
            file.write(text.encode())

    def _flush(self) -> None:
        group = int(self._ticket.properties.get(_ROW_GROUP, 2**20))
        with answering(self._records):
            for part in self._parts.values():
                if part.waiting:
                    rows = pa.concat_tables(part.waiting)
                    rows = rows.sort_by([*self._ticket.sort]) if self._ticket.sort else rows
                    part.parquet.write_table(rows, row_group_size=group)
                    part.waiting.clear()
        self._waiting_bytes = 0

    def _voted(self, part: _Part, size: int, sha256: str) -> VotedFile:
        columns = self._ticket.columns
        known = data_file_statistics_from_parquet_metadata(
            part.footer[0],
            compute_statistics_plan(columns, dict(self._ticket.properties)),
            parquet_path_to_id_mapping(columns),
        ).to_serialized_dict()
        return VotedFile(
            path=part.path,
            size=size,
            rows=part.footer[0].num_rows,
            sha256=sha256,
            spec=self._ticket.spec.spec_id,
            partition=list(part.values),
            numbers={name: {str(place): n for place, n in known[name].items()} for name in NUMBERS},
            bounds={
                name: {str(place): base64.b64encode(b).decode() for place, b in known[name].items()} for name in BOUNDS
            },
            offsets=list(known["split_offsets"] or ()),
        )


class _Placed(PartitionKey):
    """A partition with known values, because pyiceberg would compute them again from a row."""

    def __init__(self, spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> None:
        pairs = zip(spec.fields, values, strict=True)
        super().__init__([PartitionFieldValue(field, value) for field, value in pairs], spec, schema)

    @property
    def partition(self) -> Record:  # pyiceberg has a cached property
        return Record(*(pair.value for pair in self.field_values))


def fit_for(ticket: Ticket) -> Callable[[pa.RecordBatch], pa.Table]:
    """Return a function that casts rows to the table's columns. It raises ValueError for a value that does not fit."""
    columns = ticket.columns.as_arrow()
    return lambda batch: fitted(batch, columns, in_python=columns.names)


def answering(records: AnyPath) -> AbstractContextManager[None]:
    """Raise an OSError of the block as Retryable, or as Fatal if a store refuses the credentials."""
    return storage_errors(records, f"the warehouse of {records} can't be used")


def remove(records: AnyPath, id: str) -> None:
    """Remove a participant's files, from the last record to the first so that no gap appears, and then its own record.

    Idempotent. It also aborts the upload of a large object, which a killed writer leaves.
    """
    named = list[AnyPath]()
    for number in count():
        record = records / f"{id}.{number}"
        if not record.exists():
            break
        named.append(record)
    for record in reversed(named):
        for path in map(path_at, filter(None, record.read_text().split("\n"))):
            if isinstance(path, ObjectPath):
                for upload in path.parent.uploads():
                    if upload.name == path.name:
                        path.parent.abort_below(upload)
            path.unlink(missing_ok=True)
        record.unlink(missing_ok=True)
    (records / id).unlink(missing_ok=True)
