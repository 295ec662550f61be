"""The executor's side: a task attempt's Parquet files, which no reader finds before a snapshot names them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from exactsink.contract import Committable, Fatal, Retryable, Txn, Writer
from exactsink.toolkit.storage import DurableFile, make_folder, new_file, storage_errors, sync_folders
from exactsink_iceberg.durable_io import local_path
from exactsink_iceberg.partitions import divided

__all__ = ["IcebergWriter", "Ticket", "VotedFile", "answering", "data_file", "remove", "votes_of"]

_BUFFERED_BYTES = 64 * 2**20
_NUMBERS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


class Ticket(BaseModel):
    """What a task knows of the table: no catalog is asked for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    location: str
    records: str
    properties: Mapping[str, str]
    columns: Schema
    spec: PartitionSpec


class VotedFile(BaseModel):
    """A data file as its vote has it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    path: str
    size: int
    rows: int
    spec: int
    partition: list[bool | int | str | None]
    numbers: dict[str, dict[str, int]]
    bounds: dict[str, dict[str, str]]
    offsets: list[int]


_VOTES = TypeAdapter(list[VotedFile])


@dataclass(slots=True)
class _Part:
    """One Parquet file: its partition, its rows that are not written yet, and its footer once it is closed."""

    path: str
    values: tuple[Any, ...]
    file: DurableFile
    parquet: pq.ParquetWriter
    footer: list[pq.FileMetaData]
    waiting: list[pa.Table]

    def flush(self) -> None:
        if self.waiting:
            self.parquet.write_table(pa.concat_tables(self.waiting))
            self.waiting.clear()


class IcebergWriter(Writer):
    """A task attempt's files, where the table's layout has them, and a record of each, by which a sweep finds it."""

    def __init__(self, txn: Txn, ticket: Ticket) -> None:
        self._txn, self._ticket = txn, ticket
        self._records = Path(ticket.records)
        self._columns = ticket.columns.as_arrow()
        self._places = load_location_provider(ticket.location, dict(ticket.properties))
        self._parts: dict[tuple[Any, ...], _Part] = {}
        self._rows = self._waiting_bytes = 0
        with answering(self._records):
            try:
                new_file(self._records / txn.id).close()  # first: no file of ours is without it
            except FileNotFoundError:
                why, fix = "the driver made it", "set warehouse to a folder that the driver and all executors share"
                raise Fatal(f"{self._records} does not exist on this executor", why=why, next=fix) from None

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            rows = _fitted(batch, self._columns)
        except ValueError as error:
            fix = "cast or filter such rows in the query"
            raise Fatal(f"sink {self._txn.sink}: the table can't take a row", why=str(error), next=fix) from error
        for values, part in divided(rows, self._ticket.spec, self._ticket.columns):
            self._part(values).waiting.append(part)
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
                size, _ = part.file.seal()
                voted.append(self._voted(part, size))
            sync_folders({self._records, *(local_path(part.path).parent for part in self._parts.values())})
            if not (self._records / self._txn.id).exists():
                raise Retryable(f"{self._txn.id} was swept", next="start the job again: its driver is not the newest")
        return Committable(self._txn, self._rows, _VOTES.dump_json(voted))

    def abort(self) -> None:
        with answering(self._records):
            for part in self._parts.values():
                with suppress(OSError):  # a full disk: it has no room for the footer either
                    part.parquet.close()
                part.file.close()
            remove(self._records, self._txn.id)

    def _part(self, values: tuple[Any, ...]) -> _Part:
        if values not in self._parts:
            number, spec = len(self._parts), self._ticket.spec
            name = f"{self._txn.id}.{number}.parquet"
            path = self._places.new_data_location(name, _Placed(spec, self._ticket.columns, values) if values else None)
            footer = list[pq.FileMetaData]()
            with answering(self._records):
                file_record = new_file(self._records / f"{self._txn.id}.{number}")
                with file_record:
                    file_record.write(path.encode())
                make_folder(local_path(path).parent)
                file = DurableFile(local_path(path))
                out = pa.PythonFile(file, mode="w")
                parquet = pq.ParquetWriter(out, self._columns, metadata_collector=footer, compression="zstd")
            self._parts[values] = _Part(path, values, file, parquet, footer, [])
        return self._parts[values]

    def _flush(self) -> None:
        with answering(self._records):
            for part in self._parts.values():
                part.flush()
        self._waiting_bytes = 0

    def _voted(self, part: _Part, size: int) -> VotedFile:
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
            spec=self._ticket.spec.spec_id,
            partition=list(part.values),
            numbers={name: {str(place): n for place, n in known[name].items()} for name in _NUMBERS},
            bounds={
                name: {str(place): base64.b64encode(b).decode() for place, b in known[name].items()} for name in _BOUNDS
            },
            offsets=list(known["split_offsets"] or ()),
        )


class _Placed(PartitionKey):
    """A partition whose values are known: pyiceberg would make them anew of a row's."""

    def __init__(self, spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> None:
        pairs = zip(spec.fields, values, strict=True)
        super().__init__([PartitionFieldValue(field, value) for field, value in pairs], spec, schema)

    @property
    def partition(self) -> Record:  # theirs is a cached property
        return Record(*(pair.value for pair in self.field_values))


def answering(records: Path) -> AbstractContextManager[None]:
    """Raise an OSError of the block as Retryable."""
    return storage_errors(records, f"the warehouse of {records} can't be used")


def votes_of(committable: Committable) -> list[VotedFile]:
    """Read a vote's files. Raises Fatal for what is none."""
    try:
        return _VOTES.validate_json(committable.payload)
    except ValueError as error:
        what = f"the vote of {committable.ref} can't be read"
        raise Fatal(what, why=f"{type(error).__name__}", next="start the job with the release that wrote it") from None


def data_file(voted: VotedFile) -> DataFile:
    """Make what a manifest says of a file."""
    numbers = {name: {int(place): n for place, n in voted.numbers[name].items()} for name in _NUMBERS}
    bounds = {name: {int(place): base64.b64decode(b) for place, b in voted.bounds[name].items()} for name in _BOUNDS}
    known: dict[str, Any] = {**numbers, **bounds}
    made: DataFile = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=voted.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*voted.partition),
        record_count=voted.rows,
        file_size_in_bytes=voted.size,
        split_offsets=voted.offsets or None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        spec_id=voted.spec,
        **known,
    )
    return made


def remove(records: Path, id: str) -> None:
    """Remove a participant's files, the last one first so that no gap comes up, and then its record. Idempotent."""
    named = list[Path]()
    for number in count():
        record = records / f"{id}.{number}"
        if not record.exists():
            break
        named.append(record)
    for record in reversed(named):
        if path := record.read_text():
            local_path(path).unlink(missing_ok=True)
        record.unlink(missing_ok=True)
    (records / id).unlink(missing_ok=True)


def _fitted(batch: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
    """Return rows in the table's types. Raises ValueError for what a column can't hold."""
    for field in columns:
        if not field.nullable and batch.column(field.name).null_count:
            raise ValueError(f"column {field.name} is required")
    return pa.Table.from_arrays([batch.column(field.name).cast(field.type) for field in columns], schema=columns)
