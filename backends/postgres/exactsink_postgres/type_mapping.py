"""Which Arrow types go into which columns: the type to make a column of, and why values can't go into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from psycopg import postgres

from exactsink.toolkit.json_columns import element_of, is_json_text
from exactsink.toolkit.spark_sql import quoted_name

__all__ = ["ELEMENTS", "TEXTS", "Column", "cast_for", "column_type", "matches", "misfit"]

TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "json", "jsonb"})
"""Types, beside enums, whose values arrive as text."""

ELEMENTS = {
    name: postgres.types[name].oid
    for name in ["bool", "int2", "int4", "int8", "float4", "float8", "numeric", "date", "time", "timestamp", "interval"]
}
"""Types that pgpq writes as elements of an array, with their oids, which are the same on every server."""

_CREATED = {
    arrow: column
    for column, types in {
        "boolean": "bool",
        "smallint": "int8 uint8 int16",
        "integer": "uint16 int32",
        "bigint": "uint32 int64",
        "numeric(20,0)": "uint64",
        "real": "halffloat float",
        "double precision": "double",
        "text": "string large_string string_view",
        "bytea": "binary large_binary binary_view",
        "date": "date32[day] date64[ms]",
    }.items()
    for arrow in types.split()
}
_WHOLE_INTERVAL = 0x7FFF << 16  # an interval's modifier with all its fields

_Test = Callable[[pa.DataType], bool]
_is = pa.types


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
        """Return the most characters of a varchar(n) or char(n); None when nothing bounds them."""
        return self.modifier - 4 if self.base in ("varchar", "bpchar") and self.modifier >= 4 else None

    @property
    def second_digits(self) -> int:
        """Return how many digits of a second's fraction are kept."""
        kept = self.modifier & 0xFFFF if self.base == "interval" else self.modifier
        return kept if self.modifier >= 0 and kept <= 6 else 6


class _Kind(NamedTuple):
    """A type of the server: what it takes, its name in Spark, and what, beside text, Spark casts to it."""

    takes: _Test
    spark: str
    casts: _Test


def _one_of(*tests: _Test) -> _Test:
    return lambda given: any(test(given) for test in tests)


def _never(type: pa.DataType) -> bool:
    return False


def _always(type: pa.DataType) -> bool:
    return True


def _is_whole(type: pa.DataType) -> bool:
    return bool(_is.is_integer(type) or (_is.is_decimal(type) and type.scale <= 0))


def _is_uuid(type: pa.DataType) -> bool:
    return _is_text(type) or (_is_bytes(type) and (not _is.is_fixed_size_binary(type) or type.byte_width == 16))


def _is_plain(type: pa.DataType) -> bool:
    return not (_is_bytes(type) or _is.is_temporal(type))


_is_text = _one_of(_is.is_string, _is.is_large_string, _is.is_string_view)
_is_bytes = _one_of(_is.is_binary, _is.is_large_binary, _is.is_fixed_size_binary, _is.is_binary_view)
_is_number = _one_of(_is.is_integer, _is.is_floating, _is.is_decimal)
_is_moment = _one_of(_is.is_date, _is.is_timestamp)
_is_span = _one_of(_is.is_time, _is.is_duration, _is.is_interval)
_TEXT = _Kind(_is_text, "STRING", _always)
_KINDS = {
    "bool": _Kind(_is.is_boolean, "BOOLEAN", _is_number),
    "int2": _Kind(_is_whole, "SMALLINT", _is_plain),
    "int4": _Kind(_is_whole, "INT", _is_plain),
    "int8": _Kind(_is_whole, "BIGINT", _is_plain),
    "float4": _Kind(_one_of(_is.is_floating, _is.is_integer), "FLOAT", _is_plain),
    "float8": _Kind(_one_of(_is.is_floating, _is.is_integer), "DOUBLE", _is_plain),
    "numeric": _Kind(_one_of(_is.is_decimal, _is.is_integer), "DECIMAL", _is_plain),
    "date": _Kind(_is.is_date, "DATE", _is_moment),
    "timestamp": _Kind(_is.is_timestamp, "TIMESTAMP_NTZ", _is_moment),
    "timestamptz": _Kind(_is.is_timestamp, "TIMESTAMP", _is_moment),
    "time": _Kind(_is.is_time, "TIME(6)", _is_span),
    "interval": _Kind(_is.is_duration, "INTERVAL DAY TO SECOND", _is_span),
    "bytea": _Kind(_is_bytes, "BINARY", _never),
    "uuid": _Kind(_is_uuid, "STRING", _never),
    **dict.fromkeys(("json", "jsonb"), _Kind(_is_text, "STRING", _never)),
    **dict.fromkeys(TEXTS - {"json", "jsonb"}, _TEXT),
}


def matches(names: Sequence[str], columns: Sequence[Column]) -> Iterator[list[Column]]:
    """Find each name's columns: the one so spelled, else all that are equal without regard to case, as in Spark."""
    exact = {column.name: column for column in columns}
    folded: dict[str, list[Column]] = {}
    for column in columns:
        folded.setdefault(column.name.lower(), []).append(column)
    for name in names:
        yield [exact[name]] if name in exact else folded.get(name.lower(), [])


def column_type(type: pa.DataType) -> str | None:
    """Name the type of a new column for values of an Arrow type; None when there is none."""
    if is_json_text(type):
        return "jsonb"
    element = element_of(type)
    if element is not None:
        inner = None if element_of(element) is not None or _is.is_struct(element) else column_type(element)
        return None if inner is None else f"{inner}[]"
    if _is.is_dictionary(type):
        return column_type(type.value_type)
    if _is.is_decimal(type):
        return f"numeric({type.precision - min(0, type.scale)},{max(0, type.scale)})"
    if _is.is_timestamp(type):
        return "timestamp with time zone" if type.tz else "timestamp"
    for test, name in ((_is.is_time, "time"), (_is.is_duration, "interval"), (_is.is_fixed_size_binary, "bytea")):
        if test(type):
            return name
    return _CREATED.get(str(type))


def misfit(field: pa.Field, column: Column) -> str | None:
    """Return why values of a field's type can't go into a column without loss, None when they can."""
    given = field.type.value_type if _is.is_dictionary(field.type) else field.type
    element = element_of(given)
    shown = "JSON" if is_json_text(given) else str(given)
    what = f"the rows' {shown} does not go into {column.type}"
    if _is.is_null(given):
        return f"the rows have nothing but NULL for it, and it is {column.type} NOT NULL" if column.not_null else None
    if (element is None) == column.array:
        return f"{what}: {'an array takes lists' if column.array else 'only an array takes lists'}"
    why = _scalar_misfit(given if element is None else element, column)
    return None if why is None else f"{what}: {why}" if why else what


def cast_for(field: pa.Field, column: Column) -> str | None:
    """Return the expression of Spark SQL that makes a field fit a column; None when there is none."""
    name, list_of, kind = quoted_name(field.name), element_of(field.type), _kind_of(column)
    if list_of is not None and not column.array:
        return f"to_json({name})" if column.base in TEXTS else None
    if list_of is None and column.array:
        return f"array({name})" if _scalar_misfit(field.type, column) is None else None
    given = list_of or field.type
    if kind is None or is_json_text(given) or not (_is_text(given) or kind.casts(given)):
        return None
    spark = kind.spark
    if column.base == "numeric":
        precision, scale = column.digits or (38, 18)
        spark = f"DECIMAL({min(precision, 38)},{max(0, min(scale, precision, 38))})"
    return f"CAST({name} AS {f'ARRAY<{spark}>' if column.array else spark})"


def _kind_of(column: Column) -> _Kind | None:
    """Find a column's type; an enum may have any name, but not one of the server's own types."""
    known = _KINDS.get(column.base)
    if column.kind == "e":
        return _TEXT if known is None else None
    return known if column.kind == "b" else None


def _scalar_misfit(type: pa.DataType, column: Column) -> str | None:
    """Return why not, perhaps in no words; None when it fits."""
    if _is.is_dictionary(type):
        return _scalar_misfit(type.value_type, column)
    base, kind = column.base, _kind_of(column)
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
    return None if kind.takes(type) else ""
