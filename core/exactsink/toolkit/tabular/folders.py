"""Folders of rows: partitions named `column=value`, as Spark names them, and folders that belong to a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Fatal, Finding
from exactsink.toolkit.storage import AnyPath, file_names

__all__ = ["split", "table_findings"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")  # Spark's list, and NUL, which no file name can hold
_DATE_LENGTH = len("2026-11-20")
_LOGS = {"_delta_log": (".json", "Delta"), "metadata": (".metadata.json", "Iceberg")}
"""The folder in which a table lists its files, the end of a file's name there, and the kind of table."""


def table_findings(root: AnyPath) -> Iterator[Finding]:
    """Refuse a table's folder: the table's readers skip files that it does not list, and VACUUM deletes them."""
    for log, (end, kind) in _LOGS.items():
        with suppress(OSError):
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
    texts = [_text(batch.column(name), name) for name in partition_by]
    keys = [str(i) for i in range(len(texts))]  # numbers, because a column may have any other name
    numbers = pc.indices_nonzero(pa.repeat(True, batch.num_rows))
    rows = pa.table([*texts, numbers], names=[*keys, "row"])
    groups = rows.group_by(keys, use_threads=False).aggregate([("row", "list")])
    lists = groups["row_list"].combine_chunks()
    if len(groups) > 1:
        rest = rest.take(lists.flatten())
    start = 0
    for values, count in zip(groups.select(keys).to_pylist(), lists.value_lengths().to_pylist(), strict=True):
        pairs = zip(partition_by, values.values(), strict=True)
        yield "/".join(f"{_escape(name)}={_escape(value)}" for name, value in pairs), rest.slice(start, count)
        start += count


def _text(column: pa.Array, name: str) -> pa.Array:
    """Write a column's values as Spark writes them in folder names. Raises Fatal for dates that have no such name."""
    text = column.cast(pa.large_string())
    if pa.types.is_date(column.type) and pc.any(pc.not_equal(pc.utf8_length(text), _DATE_LENGTH)).as_py():
        raise Fatal(
            f"partition column {name} holds a date outside the years 0 to 9999",
            next="correct or filter such dates in the frame",
        )
    return pc.if_else(pc.equal(text, ""), _NULL, text).fill_null(_NULL)


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
