"""Which Arrow types fit which columns: the type to convert a column to, and the reason why values don't fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from psycopg import postgres

from exactsink.toolkit.json_columns import element_of, is_json_text
from exactsink.toolkit.spark_sql import quoted_name

__all__ = ["ELEMENTS", "TEXTS", "Column", "cast_for", "column_type", "family", "is_read_by_server", "matches", "misfit"]

TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "json", "jsonb"})
"""Types, beside enums, with values that arrive as text."""

ELEMENTS = {
    name: postgres.types[name].oid
    for name in ["bool", "int2", "int4", "int8", "float4", "float8", "numeric", "date", "time", "timestamp", "interval"]
}
"""Types that pgpq writes as elements of an array, with their oids, which are equal on every server."""

_CUT = frozenset({"char", "money", "name", "timetz"})
"""Types whose input silently rounds or cuts a text."""

_WHOLE_INTERVAL = 0x7FFF << 16  # an interval's modifier with all its fields

_ARROW = {
    name: (family, column)
    for names, family, column in (
        ("bool", "bool", "boolean"),
        ("int8 uint8 int16", "whole", "smallint"),
        ("uint16 int32", "whole", "integer"),
        ("uint32 int64", "whole", "bigint"),
        ("uint64", "whole", "numeric(20,0)"),
        ("halffloat float", "float", "real"),
        ("double", "float", "double precision"),
        ("decimal32 decimal64 decimal128 decimal256", "decimal", "numeric"),
        ("string large_string string_view", "text", "text"),
        ("binary large_binary binary_view fixed_size_binary", "bytes", "bytea"),
        ("date32 date64", "date", "date"),
        ("timestamp", "timestamp", "timestamp"),
        ("time32 time64", "time", "time"),
        ("duration", "span", "interval"),
        ("month_day_nano_interval", "months", None),
    )
    for name in names.split()
}
"""Arrow's types by their plain names, each with its family, and with the type of a column that is made for it."""


class _Kind(NamedTuple):
    """A type of the server: its name in Spark, the families it takes, and those, beside text, that Spark casts to it.

    `casts` is None where Spark casts anything.
    """

    spark: str
    takes: str
    casts: str | None = ""


_is = pa.types
_TEXT = _Kind("STRING", "text", None)
_NUMBERS = "whole float decimal"
_PLAIN = f"bool {_NUMBERS}"
_MOMENTS = "date timestamp"
_SPANS = "time span months"
_KINDS = {
    "bool": _Kind("BOOLEAN", "bool", _NUMBERS),
    "int2": _Kind("SMALLINT", "whole", _PLAIN),
    "int4": _Kind("INT", "whole", _PLAIN),
    "int8": _Kind("BIGINT", "whole", _PLAIN),
    "float4": _Kind("FLOAT", "float whole", _PLAIN),
    "float8": _Kind("DOUBLE", "float whole", _PLAIN),
    "numeric": _Kind("DECIMAL", "decimal whole", _PLAIN),
    "date": _Kind("DATE", "date", _MOMENTS),
    "timestamp": _Kind("TIMESTAMP_NTZ", "timestamp", _MOMENTS),
    "timestamptz": _Kind("TIMESTAMP", "timestamp", _MOMENTS),
    "time": _Kind("TIME(6)", "time", _SPANS),
    "interval": _Kind("INTERVAL DAY TO SECOND", "span", _SPANS),
    "bytea": _Kind("BINARY", "bytes"),
    "uuid": _Kind("STRING", "text bytes"),
    **dict.fromkeys(("json", "jsonb"), _Kind("STRING", "text")),
    **dict.fromkeys(("text", "varchar", "bpchar", "citext"), _TEXT),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    `type` is how the server writes its type, `base` the catalog's name of the type below domains (of an array's
    element), `kind` that type's kind in the catalog (b, e, ...), `modifier` its modifier or -1. `optional`: rows may
    leave it out, and get `default` (an expression of SQL), or NULL; `computed`: rows must leave it out. `element` is
    the oid of an array's element type, a domain perhaps.
    """

    name: str
    type: str
    base: str
    kind: str = "b"
    array: bool = False
    modifier: int = -1
    not_null: bool = False
    optional: bool = True
    computed: bool = False
    default: str | None = None
    element: int = 0

    @property
    def digits(self) -> tuple[int, int] | None:
        """Return a numeric's precision and scale; None when it takes any."""
        if self.base != "numeric" or self.modifier < 4:
            return None
        packed = self.modifier - 4
        return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024

    @property
    def length(self) -> int | None:
        """The most characters of a varchar(n) or char(n), None without a limit."""
        return self.modifier - 4 if self.base in ("varchar", "bpchar") and self.modifier >= 4 else None

    @property
    def second_digits(self) -> int:
        """Return how many digits of a second's fraction are kept."""
        kept = self.modifier & 0xFFFF if self.base == "interval" else self.modifier
        return kept if self.modifier >= 0 and kept <= 6 else 6


def matches(names: Sequence[str], columns: Sequence[Column]) -> Iterator[list[Column]]:
    """Find each name's columns: the one with the same spelling, otherwise all that match without case, as in Spark."""
    exact = {column.name: column for column in columns}
    folded: dict[str, list[Column]] = {}
    for column in columns:
        folded.setdefault(column.name.lower(), []).append(column)
    for name in names:
        yield [exact[name]] if name in exact else folded.get(name.lower(), [])


def family(type: pa.DataType) -> str:
    """Name the family of an Arrow type, of a dictionary's values; empty for lists and structs."""
    return _made_of(type)[0]


def column_type(type: pa.DataType) -> str | None:
    """Name the type of a new column for values of an Arrow type; None when there is none."""
    if is_json_text(type):
        return "jsonb"
    element = element_of(type)
    if element is not None:
        inner = column_type(element) if family(element) else None
        return None if inner is None else f"{inner}[]"
    if _is.is_dictionary(type):
        return column_type(type.value_type)
    if _is.is_decimal(type):
        return f"numeric({type.precision - min(0, type.scale)},{max(0, type.scale)})"
    if _is.is_timestamp(type) and type.tz:
        return "timestamp with time zone"
    return _made_of(type)[1]


def misfit(field: pa.Field, column: Column) -> str | None:
    """Return why values of a field's type can't go into a column without loss, None when they can."""
    given = _decoded(field.type)
    element = element_of(given)
    shown = "JSON" if is_json_text(given) else str(given)
    what = f"the rows' {shown} does not go into {column.type}"
    if _is.is_null(given):
        return f"the rows have nothing but NULL for it, and it is {column.type} NOT NULL" if column.not_null else None
    if (element is None) == column.array:
        return f"{what}: {'an array takes lists' if column.array else 'only an array takes lists'}"
    why = _scalar_misfit(given if element is None else _decoded(element), column)
    return None if why is None else f"{what}: {why}" if why else what


def cast_for(field: pa.Field, column: Column) -> str | None:
    """Return the expression of Spark SQL that makes a field fit a column; None when there is none."""
    name, list_of = quoted_name(field.name), element_of(field.type)
    kind = _TEXT if is_read_by_server(column) else _kind_of(column)
    if list_of is not None and not column.array:
        return f"to_json({name})" if column.base in TEXTS else None
    if list_of is None and column.array:
        return f"array({name})" if _scalar_misfit(_decoded(field.type), column) is None else None
    given = list_of or field.type
    if kind is None or is_json_text(given):
        return None
    if kind.casts is not None and family(given) not in ("text", *kind.casts.split()):
        return None
    spark = kind.spark
    if column.base == "numeric":
        precision, scale = column.digits or (38, 18)
        spark = f"DECIMAL({min(precision, 38)},{max(0, min(scale, precision, 38))})"
    return f"CAST({name} AS {f'ARRAY<{spark}>' if column.array else spark})"


def _decoded(type: pa.DataType) -> pa.DataType:
    return type.value_type if _is.is_dictionary(type) else type


def _made_of(type: pa.DataType) -> tuple[str, str | None]:
    return _ARROW.get(re.split(r"[\[(<]", str(_decoded(type)))[0], ("", None))


def is_read_by_server(column: Column) -> bool:
    """Return whether a column's values are texts that the server's own input function reads, as an INSERT's are."""
    apart = (column.array and column.base == "box") or column.base in _CUT  # semicolons separate boxes in an array
    return column.kind in "bcrm" and _kind_of(column) is None and not apart


def _kind_of(column: Column) -> _Kind | None:
    """Find a column's type; an enum may have any name, but not one of the server's own types."""
    known = _KINDS.get(column.base)
    if column.kind == "e":
        return _TEXT if known is None else None
    return known if column.kind == "b" else None


def _scalar_misfit(type: pa.DataType, column: Column) -> str | None:
    """Return why not, perhaps in no words; None when it fits."""
    base, kind = column.base, _TEXT if is_read_by_server(column) else _kind_of(column)
    if kind is None:
        return "no type of the rows goes into such a column"
    if column.array and base in ELEMENTS and column.element not in (0, ELEMENTS[base]):  # pgpq knows no domains
        return "arrays of such a domain are not written"
    if _is.is_null(type):
        return None
    if is_json_text(type):
        return None if base in TEXTS and not column.array else "only text, json and jsonb take JSON"
    if base == "timestamp" and _is.is_timestamp(type) and type.tz:
        return "the column would forget the time zone"
    if base == "timestamptz" and _is.is_timestamp(type) and not type.tz:
        return "the rows have no time zone, and the server's would be put there"
    if base == "float4" and _is.is_float64(type):
        return "digits would be lost"
    if base == "interval" and column.modifier >= 0 and column.modifier & _WHOLE_INTERVAL != _WHOLE_INTERVAL:
        return "the column drops some fields of an interval"
    if base == "uuid" and _is.is_fixed_size_binary(type) and type.byte_width != 16:
        return ""
    is_whole = base in ("int2", "int4", "int8") and _is.is_decimal(type) and type.scale <= 0
    return None if is_whole or family(type) in kind.takes.split() else ""
