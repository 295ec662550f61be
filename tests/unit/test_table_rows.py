"""What a table can't hold, found in the task: by the writer, and row by row by the judge of a quarantine."""

from __future__ import annotations

import pyarrow as pa
import pytest

from exactsink.toolkit.tabular.tables import TableValidator, fitted

NUMBER, MOMENTS = pa.field("a", pa.int64(), nullable=False), pa.list_(pa.timestamp("us", "UTC"))
DIGITS = pa.Array.from_buffers(pa.decimal128(4, 2), 1, [None, pa.py_buffer((10**9).to_bytes(16, "little"))])
TEXT = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
BAD = {
    "NULL": (pa.nulls(1, pa.int64()), NUMBER.type, "column a is NOT NULL"),
    "in a list": (pa.array([[1, None]]), pa.list_(NUMBER), "column a.a is NOT NULL"),
    "in a map": (pa.array([[(1, None)]], pa.map_(pa.int8(), pa.int64())), pa.map_(pa.int8(), NUMBER), "a is NOT NULL"),
    "in a struct": (pa.array([{"a": None}], pa.struct([("a", pa.int64())])), pa.struct([NUMBER]), "has nulls"),
    "too large": (pa.array([300]), pa.int8(), "not in range"),
    "text": (TEXT, TEXT.type, "column a: Invalid UTF8"),
    "digits": (DIGITS, DIGITS.type, "column a: Decimal value"),
    "date": (pa.array([2_932_897], pa.int32()).cast(pa.date32()), pa.date32(), "outside the years 1 to 9999"),
    "moment": (pa.array([[-62_135_596_800_000_001]], MOMENTS), MOMENTS, "column a.item has a date outside the years"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_row_that_a_table_can_not_hold_is_found_among_others(name: str) -> None:
    values, kind, why = BAD[name]
    fine = {"NULL": 1, "in a struct": {"a": 1}}.get(name)
    batch = pa.record_batch([pa.concat_arrays([pa.array([fine], values.type), values])], names=["a"])
    columns = pa.schema([pa.field("a", kind, nullable=name != "NULL")])
    with pytest.raises(ValueError, match=why):
        fitted(batch, columns, ["a"])
    [(place, reason)] = TableValidator(batch.schema, lambda rows: fitted(rows, columns, ["a"])).bad_rows(batch)
    assert (place, why in reason) == (1, True)
