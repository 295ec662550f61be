"""The executor's side: a task attempt's Parquet files, in folders `column=value`, as other writers of Delta have them.

Readers take a partition's values from the log, but some take them from the folders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exactsink.contract import Txn
from exactsink.toolkit.storage import AnyPath, ObjectPath, storage_errors
from exactsink.toolkit.tabular.folders import folder_of
from exactsink.toolkit.tabular.table_writer import Layout, TableWriter, WrittenFile
from exactsink.toolkit.tabular.tables import fitted
from exactsink_delta.log import RECORDS

__all__ = ["DeltaWriter", "answering", "columns_of", "file_of", "fit_for", "text_of"]

_INDEXED_COLUMNS = 32
_LONGEST_STATISTIC = 64


class DeltaWriter(TableWriter):
    """Write a task attempt's files without the partition columns, whose values the log has."""

    def __init__(self, root: AnyPath, txn: Txn, ticket: pa.Schema) -> None:
        self._root, self._partition_by = root, partitions_of(ticket)
        columns = pa.schema([field for field in ticket if field.name not in self._partition_by])
        super().__init__(txn, Layout(columns), root / RECORDS, fit_for(ticket), "path")

    def answering(self) -> AbstractContextManager[None]:
        return answering(self._root)

    def divided(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        by = self._partition_by
        if not by:
            yield (), rows
            return
        places = rows.select(by).append_column("", pa.array(range(rows.num_rows)))
        for group in places.group_by(by, use_threads=False).aggregate([("", "list")]).to_pylist():
            yield tuple(text_of(group[name]) for name in by), rows.take(group["_list"]).drop_columns(by)

    def place(self, values: tuple[str | None, ...], name: str) -> AnyPath:
        return file_of(self._root, self._valued(values), name)

    def vote(self, files: Sequence[WrittenFile]) -> bytes:
        return json.dumps(
            [
                {
                    "size": file.size,
                    "sha256": file.sha256,
                    "values": self._valued(file.values),
                    "stats": _statistics(file.footer),
                }
                for file in files
            ]
        ).encode()

    def _valued(self, values: tuple[str | None, ...]) -> dict[str, str | None]:
        return dict(zip(self._partition_by, values, strict=True))


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


def file_of(root: AnyPath, values: Mapping[str, str | None], name: str) -> AnyPath:
    """Return the path of a partition's file."""
    folder = folder_of(values.items())
    return root / folder / name if folder else root / name


def columns_of(path: AnyPath) -> pa.Schema:
    """Read a file's columns from its footer."""
    with path.reading() if isinstance(path, ObjectPath) else open(path, "rb") as file:
        return pq.read_schema(file)


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
