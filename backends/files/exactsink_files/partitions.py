"""Hive-style partition folders: which columns can make them, their names, and a batch's rows by folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.errors import Fatal
from exactsink.model import Finding

__all__ = ["hive_name", "name_problems", "split", "type_problems"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")  # Spark's list, and NUL, which no file name can hold
_DATE_LENGTH = len("2026-11-20")


def hive_name(column: str, value: str) -> str:
    """Name a partition value's folder as Spark and Hive do."""
    return f"{_escape(column)}={_escape(value)}"


def name_problems(schema: pa.Schema, chosen: Sequence[str]) -> list[Finding]:
    """Find partition columns that the rows lack, and rows of which nothing would be left."""
    problems = []
    for name in chosen:
        count = schema.names.count(name)
        if count == 0:
            message = f"partition column {name} is not in the rows: they have {', '.join(schema.names)}"
            problems.append(
                Finding("error", message, "name one of these columns in partition_by, or add it to columns")
            )
        elif count > 1:
            message = f"partition column {name} is in the rows {count} times"
            problems.append(Finding("error", message, "rename all but one of them"))
        elif name.startswith("."):
            message = f"partition column {name} makes folders that begin with a dot, which readers skip"
            problems.append(Finding("error", message, "rename the column"))
        elif name.startswith("_"):
            message = f"partition column {name} makes folders that begin with `_`, which pyarrow and pandas skip"
            problems.append(Finding("warning", message, "rename the column, unless only Spark reads the files"))
    if chosen and not set(schema.names) - set(chosen):
        message = "all columns are partition columns: the files would have none"
        problems.append(Finding("error", message, "take a column out of partition_by, or add one to columns"))
    return problems


def type_problems(schema: pa.Schema, chosen: Sequence[str]) -> list[Finding]:
    """Find partition columns whose values do not survive being a folder's name."""
    return [
        Finding(
            "error",
            f"partition column {field.name} is of type {field.type}: string, integer, boolean and date are possible",
            f"cast it in the frame, with CAST(`{field.name}` AS STRING) say, or take it out of partition_by",
        )
        for field in schema
        if field.name in chosen and not _can_partition(field.type)
    ]


def split(batch: pa.RecordBatch, chosen: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Give a batch's rows per partition folder, without the partition columns, in the order they came.

    Folders come once each: a null and an empty string, which share a folder, come together.
    """
    if not chosen:
        yield "", batch
        return
    texts = [_text(batch.column(name), name) for name in chosen]
    rest = batch.select([i for i, name in enumerate(batch.schema.names) if name not in chosen])
    codes, distinct = _codes(texts)
    if distinct == 1:
        yield _folder(chosen, texts, 0), rest
        return
    order = pc.array_sort_indices(codes)  # stable
    rest = rest.take(order)
    start = 0
    for end in pc.run_end_encode(codes.take(order)).run_ends.to_pylist():
        yield _folder(chosen, texts, order[start].as_py()), rest.slice(start, end - start)
        start = end


def _can_partition(kind: pa.DataType) -> bool:
    is_a = pa.types
    tests = (is_a.is_string, is_a.is_large_string, is_a.is_integer, is_a.is_boolean, is_a.is_date)
    return any(test(kind) for test in tests)


def _text(column: pa.Array, name: str) -> pa.Array:
    """Write a column's values as Spark writes them in folder names. Raises Fatal for dates that have no such name."""
    text = column.cast(pa.large_string())
    if pa.types.is_date(column.type):
        lengths = pc.min_max(pc.utf8_length(text)).as_py()
        if lengths["min"] is not None and {lengths["min"], lengths["max"]} != {_DATE_LENGTH}:
            raise Fatal(
                f"partition column {name} holds a date outside the years 0 to 9999",
                next="correct or filter such dates in the frame",
            )
    return pc.if_else(pc.equal(text, ""), _NULL, text).fill_null(_NULL)


def _codes(texts: Sequence[pa.Array]) -> tuple[pa.Array, int]:
    """Number the rows' combinations of values, densely; give the count of combinations too."""
    codes = pa.repeat(pa.scalar(0, pa.int64()), len(texts[0]))
    distinct = 1
    for text in texts:
        encoded = text.dictionary_encode()
        pairs = pc.add(
            pc.multiply(codes, len(encoded.dictionary)), encoded.indices.cast(pa.int64())
        ).dictionary_encode()
        codes, distinct = pairs.indices.cast(pa.int64()), len(pairs.dictionary)
    return codes, distinct


def _folder(chosen: Sequence[str], texts: Sequence[pa.Array], row: int) -> str:
    return "/".join(hive_name(name, text[row].as_py()) for name, text in zip(chosen, texts, strict=True))


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
