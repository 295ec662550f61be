"""Compare both sinks with the source, row by row, and count how often each row was applied."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

__all__ = ["Reconciled", "reconcile"]

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The differences between a sink and the source. Each figure counts whole rows, compared by all columns."""

    sink: str
    expected: int
    found: int
    lost: int
    doubled: int
    strange: int


def reconcile(folder: Path) -> list[Reconciled]:
    """Compare the sinks below `folder` with the source beside them."""
    source = _source(folder / "source")
    columns = source.column_names
    expected = Counter(_rows(source, columns))
    lake = ds.dataset(str(folder / "lake"), format="parquet", partitioning=_months()).to_table(columns=columns)
    return [_held("lake", expected, _rows(lake, columns)), _held("table", expected, _table(folder, columns))]


def _held(sink: str, expected: Counter[Row], rows: Iterable[Row]) -> Reconciled:
    found = Counter(rows)
    return Reconciled(
        sink,
        expected=expected.total(),
        found=found.total(),
        lost=(expected - found).total(),
        doubled=sum(times - expected[row] for row, times in found.items() if row in expected and times > expected[row]),
        strange=sum(times for row, times in found.items() if row not in expected),
    )


def _source(folder: Path) -> pa.Table:
    convert = pacsv.ConvertOptions(null_values=["NA"], strings_can_be_null=True, column_types=_types())
    tables = [pacsv.read_csv(path, convert_options=convert) for path in sorted(folder.glob("*.csv"))]
    return pa.concat_tables(tables)


def _types() -> dict[str, pa.DataType]:
    text = dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pa.string())
    return {**text, "time_hour": pa.timestamp("us", "UTC")}


def _months() -> ds.Partitioning:
    return ds.partitioning(pa.schema([("month", pa.int32())]), flavor="hive")


def _rows(table: pa.Table, columns: Sequence[str]) -> Iterable[Row]:
    values = []
    for name in columns:
        column = table.column(name)
        if name == "time_hour":  # as the SQLite table has it
            column = column.cast(pa.timestamp("us")).cast(pa.string())
        values.append(column.to_pylist())
    return zip(*values, strict=True)


def _table(folder: Path, columns: Sequence[str]) -> list[Row]:
    """Read the table. Upserts keep one row for each key, so every row counts once."""
    names = ", ".join("rtrim(replace(time_hour, 'T', ' '), 'Z')" if c == "time_hour" else c for c in columns)
    connection = sqlite3.connect(folder / "flights.db")
    try:
        return connection.execute(f"SELECT {names} FROM flights").fetchall()
    finally:
        connection.close()
