"""The executor's side: a task attempt's Parquet files, which no reader finds before a snapshot names them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import pyarrow as pa
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

from exactsink.contract import Txn
from exactsink.toolkit.storage import AnyPath, path_of, storage_errors
from exactsink.toolkit.tabular.table_writer import Layout, TableWriter, WrittenFile
from exactsink.toolkit.tabular.tables import fitted
from exactsink_iceberg.durable_io import path_at
from exactsink_iceberg.partitions import divided
from exactsink_iceberg.votes import BOUNDS, NUMBERS, VotedFile, vote

__all__ = ["IcebergWriter", "Ticket", "answering", "fit_for"]

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


class IcebergWriter(TableWriter):
    """Write a task attempt's files in the table's layout."""

    def __init__(self, txn: Txn, ticket: Ticket) -> None:
        self._ticket = ticket
        self._places = load_location_provider(ticket.location, dict(ticket.properties))
        self._locations: dict[tuple[Any, ...], str] = {}
        properties = dict(ticket.properties)
        group, settings = int(properties.get(_ROW_GROUP, 2**20)), _get_parquet_writer_kwargs(properties)
        layout = Layout(ticket.columns.as_arrow(), settings, group, ticket.sort)
        super().__init__(txn, layout, path_of(ticket.records), fit_for(ticket), "warehouse")

    def answering(self) -> AbstractContextManager[None]:
        return answering(self._records)

    def divided(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        return divided(rows, self._ticket.spec, self._ticket.columns)

    def place(self, values: tuple[Any, ...], name: str) -> AnyPath:
        placed = _Placed(self._ticket.spec, self._ticket.columns, values) if values else None
        self._locations[values] = self._places.new_data_location(name, placed)
        return path_at(self._locations[values])

    def vote(self, files: Sequence[WrittenFile]) -> bytes:
        return vote([self._voted(file) for file in files])

    def _voted(self, file: WrittenFile) -> VotedFile:
        columns = self._ticket.columns
        known = data_file_statistics_from_parquet_metadata(
            file.footer,
            compute_statistics_plan(columns, dict(self._ticket.properties)),
            parquet_path_to_id_mapping(columns),
        ).to_serialized_dict()
        return VotedFile(
            path=self._locations[file.values],
            size=file.size,
            rows=file.footer.num_rows,
            sha256=file.sha256,
            spec=self._ticket.spec.spec_id,
            partition=list(file.values),
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
