"""The kinds of values that random plays put into keys, versions and sums, and how each database may declare them."""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

_UTC = dt.timezone.utc


@dataclass(frozen=True)
class Kind:
    """Values of one type of the rows, near each other; by database the columns' types, the natural one first.

    `narrow` is a type that the rows may have had before theirs.
    """

    arrow: pa.DataType
    values: Sequence[Any]
    declared: Mapping[str, Sequence[str]]
    narrow: pa.DataType | None = None


def _declared(sqlite: str, postgres: str, mariadb: str, duckdb: str) -> Mapping[str, Sequence[str]]:
    given = {"sqlite": sqlite, "postgres": postgres, "mariadb": mariadb, "duckdb": duckdb}
    return {database: kinds.split("|") for database, kinds in given.items()}


_INSTANTS = [
    dt.datetime(2026, 3, 29, 2, 30),  # in Berlin there is no such hour, and the others come twice
    dt.datetime(2026, 10, 25, 0, 30),
    dt.datetime(2026, 10, 25, 1, 30),
    dt.datetime(2026, 10, 25, 1, 30, 0, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
]
_SIXTEEN = "|BINARY(16)"
_TEXTS = ["", "a", "A", "b", "a ", "1", "1.0", "01", "\u00df", "ss", "\u00e4", unicodedata.normalize("NFD", "\u00e4")]

KINDS: Mapping[str, Kind] = {
    "whole": Kind(
        pa.int64(),
        [-1, 0, 1, 2, 40000, 2**53, 2**53 + 1],
        _declared("BIGINT|TEXT", "bigint|numeric", "BIGINT|DECIMAL(20)|INT", "BIGINT|INTEGER"),
        pa.int32(),
    ),
    "text": Kind(
        pa.string(),
        _TEXTS,
        _declared(
            "TEXT|VARCHAR(9)|TEXT COLLATE NOCASE",
            "text|varchar(9)|text COLLATE plays.careless",
            "VARCHAR(9) COLLATE utf8mb4_nopad_bin|VARCHAR(9)|VARCHAR(9) COLLATE utf8mb4_bin",
            "VARCHAR|VARCHAR COLLATE NOCASE",
        ),
        pa.string_view(),
    ),
    "bytes": Kind(
        pa.binary(),
        [b"", b"\0", b"a", b"A", b"\xff\xfe", b"a "],
        _declared("BLOB|TEXT", "bytea", "VARBINARY(16)", "BLOB"),
    ),
    "uuid": Kind(
        pa.binary(16),
        [bytes(16), b"\xff" * 16, bytes(range(240, 256)), b"\0" * 15 + b"\1"],
        _declared("BLOB", "bytea", f"VARBINARY(16){_SIXTEEN}", "BLOB"),
    ),
    "price": Kind(
        pa.decimal128(10, 3),
        [Decimal(n) for n in ("9.500", "11.000", "1.000", "0.000", "-0.010", "9.501", "1.230")],
        _declared("TEXT|NUMERIC|DECIMAL(10,3)", "numeric|numeric(10,3)|numeric(9,2)", "DECIMAL(10,3)", "DECIMAL(10,3)"),
        pa.decimal128(9, 2),
    ),
    "fine": Kind(
        pa.decimal128(38, 18),
        [Decimal(n) for n in ("0.1", "12345678901234567890.000000000000000001", "-0.000000000000000001", "7")],
        _declared("TEXT|NUMERIC", "numeric", "DECIMAL(38,18)", "DECIMAL(38,18)"),
    ),
    "float": Kind(
        pa.float64(),
        [-0.0, 0.0, 1.5, 0.1, 1.7, 1e300, -1e-300, 1e16],
        _declared("DOUBLE|BIGINT", "float8|float4|numeric", "DOUBLE|FLOAT", "DOUBLE|INTEGER"),
        pa.float32(),
    ),
    "local": Kind(
        pa.timestamp("us"),
        _INSTANTS,
        _declared(
            "TEXT|TIMESTAMP|DATETIME", "timestamp|timestamptz|timestamp(3)", "DATETIME(6)|DATETIME", "TIMESTAMP|DATE"
        ),
        pa.timestamp("s"),
    ),
    "instant": Kind(
        pa.timestamp("us", "Europe/Berlin"),
        [instant.replace(tzinfo=_UTC) for instant in _INSTANTS],
        _declared("TEXT|TIMESTAMP", "timestamptz|timestamp", "DATETIME(6)|TIMESTAMP(6)", "TIMESTAMPTZ|TIMESTAMP"),
        pa.timestamp("us"),
    ),
    "day": Kind(
        pa.date32(),
        [dt.date(2026, 3, 29), dt.date(2026, 3, 30), dt.date(1969, 12, 31), dt.date(9999, 12, 31), dt.date(1, 1, 1)],
        _declared("TEXT|DATE", "date|timestamp", "DATE|DATETIME", "DATE|TIMESTAMP"),
    ),
    "flag": Kind(pa.bool_(), [True, False], _declared("BOOLEAN|BIGINT", "boolean", "BOOLEAN|INT", "BOOLEAN|INTEGER")),
}


def canonical(kind: str, value: Any) -> Any:
    """Return what is equal where the kind's values are: of a value of the rows, or of one that a database returned."""
    if value is None:
        return None
    if kind in ("local", "instant", "day"):
        return _time(value)
    if kind in ("bytes", "uuid"):
        return value.encode() if isinstance(value, str) else bytes(value)
    if kind in ("price", "fine"):
        return Decimal(str(value))
    if kind == "float":
        return float(value) + 0.0
    return {"whole": int, "text": str, "flag": bool}[kind](value)


def _time(value: str | dt.datetime | dt.date) -> dt.datetime:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    if not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)
    return value.astimezone(_UTC).replace(tzinfo=None) if value.tzinfo else value
