"""Folders of rows: partitions named `column=value`, as Spark names them, and folders that belong to a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Finding
from exactsink.toolkit.storage import AnyPath, file_names

__all__ = ["check_folder", "folder_of", "split", "table_findings"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")  # Spark's list, and NUL, which no file name can hold
_DAYS = range(-719_528, 2_932_897)
"""The years 0 to 9999, in days from 1970: others have no text of ten characters."""
_LOGS = {"_delta_log": (".json", "Delta"), "metadata": (".metadata.json", "Iceberg")}
"""The folder in which a table lists its files, the end of a file's name there, and the kind of table."""


def table_findings(root: AnyPath) -> Iterator[Finding]:
    """Refuse a table's folder: the table's readers skip files that it does not list, and VACUUM deletes them."""
    for log, (end, kind) in _LOGS.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            if any(name.endswith(end) for name in file_names(root / log)):
                message = f"{root} is a table of {kind}, which deletes files that it does not name"
                yield Finding("error", message, f'set backend = "{kind.lower()}", or path to another folder')


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Return a batch's rows per partition folder, without the partition columns, in their order.

    Each folder comes once: null and the empty string share a folder, and come together.
    """
    if not partition_by:
        yield "", batch
        return
    rest = batch.select([i for i, name in enumerate(batch.schema.names) if name not in partition_by])
    texts = [_text(batch.column(name)) for name in partition_by]
    keys = [str(i) for i in range(len(texts))]  # numbers, because a column may have any other name
    numbers = pc.indices_nonzero(pa.repeat(True, batch.num_rows))
    rows = pa.table([*texts, numbers], names=[*keys, "row"])
    groups = rows.group_by(keys, use_threads=False).aggregate([("row", "list")])
    lists = groups["row_list"].combine_chunks()
    if len(groups) > 1:
        rest = rest.take(lists.flatten())
    start = 0
    for values, count in zip(groups.select(keys).to_pylist(), lists.value_lengths().to_pylist(), strict=True):
        yield folder_of(zip(partition_by, values.values(), strict=True)), rest.slice(start, count)
        start += count


def folder_of(values: Iterable[tuple[str, str | None]]) -> str:
    """Return a partition's folder, for the texts of its columns' values."""
    return "/".join(f"{_escape(name)}={_escape(_NULL if value is None else value)}" for name, value in values)


def check_folder(column: pa.Array, name: str) -> None:
    """Raise ValueError for a date in a partition column that Spark does not name a folder by."""
    if pa.types.is_date(column.type):
        found = pc.min_max(column.cast(pa.date32()).cast(pa.int32())).as_py().values()
        if not all(day is None or day in _DAYS for day in found):
            raise ValueError(f"partition column {name} has a date outside the years 0 to 9999")


def _text(column: pa.Array) -> pa.Array:
    """Write a column's values as Spark writes them in folder names."""
    text = column.cast(pa.large_string())
    return pc.if_else(pc.equal(text, ""), _NULL, text).fill_null(_NULL)


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
