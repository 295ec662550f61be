"""Arrow values as MariaDB and MySQL read them: literals, made a column at a time, and rows of them by statement.

Times are UTC where their type has a zone, as the sessions are. What neither product holds is refused: NaN, infinity.
Executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import plain

__all__ = ["column_type", "packed", "rows_of"]

_NUMBERS = {"uint64": "BIGINT UNSIGNED", "bool": "BOOLEAN"}
_MOST_DIGITS, _MOST_SCALE = 65, 30
_is = pa.types


def column_type(type: pa.DataType, *, key: bool = False) -> str | None:
    """Return the column type for values of an Arrow type; None when none takes them without loss.

    A key's text is compared byte by byte where the table is made here: its collation is the caller's to add.
    """
    if _is.is_dictionary(type):
        return column_type(type.value_type, key=key)
    if _is.is_decimal(type):
        scale = max(type.scale, 0)
        digits = type.precision - min(type.scale, 0)
        return f"DECIMAL({digits}, {scale})" if digits <= _MOST_DIGITS and scale <= _MOST_SCALE else None
    kinds = (
        (_is.is_integer, "BIGINT"),
        (_is.is_floating, "DOUBLE"),
        (_is_text, "VARCHAR(255)" if key else "LONGTEXT"),
        (_is_binary, "VARBINARY(255)" if key else "LONGBLOB"),
        (_is.is_timestamp, "DATETIME(6)"),
        (_is.is_date, "DATE"),
        (_is.is_time, "TIME(6)"),
    )
    return _NUMBERS.get(str(type)) or next((name for fits, name in kinds if fits(type)), None)


def rows_of(batch: pa.RecordBatch, names: Sequence[str], more: str = "") -> pa.Array:
    """Return the rows as text, `(1,'a')`, in bytes; `more` goes in at each one's end."""
    columns = [_literals(plain(batch.column(name))) for name in names]
    return _joined(_bytes(b"("), _joined(*columns, _bytes(b",")), _bytes(f"{more})".encode()), _bytes(b""))


def packed(batches: Iterable[pa.Array], most: int) -> Iterator[bytes]:
    """Join rows by commas, into texts of about `most` bytes: longer by less than a row."""
    total = 0

    def place(rows: pa.Array) -> int:
        nonlocal total
        total += int(rows.nbytes)
        return total // most

    for _, some in groupby(batches, place):  # small batches together
        rows = pa.concat_arrays(list(some))
        packs = pc.divide(pc.cumulative_sum(pc.add(pc.binary_length(rows), 1)), most)
        first = 0
        for end in pc.run_end_encode(packs, run_end_type=pa.int64()).run_ends.to_pylist():
            joined = pa.LargeListArray.from_arrays(pa.array([first, end], pa.int64()), rows)
            yield pc.binary_join(joined, _bytes(b","))[0].as_py()
            first = end


def _literals(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is.is_boolean(kind):
        column = column.cast(pa.int8())
    elif _is.is_floating(kind):
        column = column.cast(pa.float64())
    elif _is.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    elif _is.is_decimal(kind) and kind.scale < 0:
        column = column.cast(pa.decimal256(kind.precision - kind.scale, 0))
    if _is_binary(kind):
        text = column.cast(pa.large_binary())
    else:
        text = column.cast(pa.large_string()).cast(pa.large_binary())
    if _is_binary(kind) or _is_text(kind):  # the sessions' sql_mode leaves the backslash its meaning
        text = pc.replace_substring(pc.replace_substring(text, b"\\", b"\\\\"), b"'", b"''")
    if _is_binary(kind) or _is_text(kind) or _is.is_temporal(kind):
        text = _joined(_bytes(b"_binary'" if _is_binary(kind) else b"'"), text, _bytes(b"'"), _bytes(b""))
    return pc.fill_null(text, _bytes(b"NULL"))


def _joined(*columns: pa.Array | pa.Scalar) -> pa.Array:
    """Join row by row; the last one stands between the others."""
    return pc.binary_join_element_wise(*columns)


def _bytes(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.large_binary())


def _is_text(kind: pa.DataType) -> bool:
    return any((_is.is_string(kind), _is.is_large_string(kind), _is.is_string_view(kind)))


def _is_binary(kind: pa.DataType) -> bool:
    tests = (_is.is_binary, _is.is_large_binary, _is.is_binary_view, _is.is_fixed_size_binary)
    return any(test(kind) for test in tests)
