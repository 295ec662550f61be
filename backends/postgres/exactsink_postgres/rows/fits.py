"""Which Arrow types go into which columns: what a column is, the type to make one of, and why values can't go in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "ELEMENTS",
    "JSON",
    "TEXTS",
    "Column",
    "cast_for",
    "column_type",
    "element_of",
    "json_text",
    "matches",
    "misfit",
]

JSON = "json"
"""The one field of a struct that marks JSON text: `shape` wraps it so, and rows then have no other structs."""

TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "json", "jsonb"})
"""Types, beside enums, whose values arrive as text."""

_is = pa.types
_CREATED = {
    "bool": "boolean",
    "int8": "smallint",
    "uint8": "smallint",
    "int16": "smallint",
    "uint16": "integer",
    "int32": "integer",
    "uint32": "bigint",
    "int64": "bigint",
    "uint64": "numeric(20,0)",
    "halffloat": "real",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "large_string": "text",
    "string_view": "text",
    "binary": "bytea",
    "large_binary": "bytea",
    "binary_view": "bytea",
    "date32[day]": "date",
    "date64[ms]": "date",
}
_SPARK = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INT",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "bytea": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
    "time": "TIME(6)",
    "interval": "INTERVAL DAY TO SECOND",
    "uuid": "STRING",
}
ELEMENTS = {
    "bool": 16,
    "int2": 21,
    "int4": 23,
    "int8": 20,
    "float4": 700,
    "float8": 701,
    "numeric": 1700,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "interval": 1186,
}
"""Types that pgpq writes as elements of an array, with their oids, which are the same on every server."""

_WHOLE = 0x7FFF << 16  # an interval's modifier with all its fields


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
    if json_text(type):
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
    if _is.is_time(type):
        return "time"
    if _is.is_duration(type):
        return "interval"
    return "bytea" if _is.is_fixed_size_binary(type) else _CREATED.get(str(type))


def element_of(type: pa.DataType) -> pa.DataType | None:
    """Return the type of a list's elements; None for what is no list."""
    lists = (_is.is_list, _is.is_large_list, _is.is_fixed_size_list, _is.is_list_view, _is.is_large_list_view)
    return type.value_type if any(test(type) for test in lists) else None


def json_text(type: pa.DataType) -> bool:
    """Return whether values are JSON text that `shape` made."""
    return bool(_is.is_struct(type) and type.num_fields == 1 and type[0].name == JSON and _is_text(type[0].type))


def misfit(field: pa.Field, column: Column) -> str | None:
    """Return why values of a field's type can't go into a column without loss, None when they can."""
    given = field.type.value_type if _is.is_dictionary(field.type) else field.type
    element = element_of(given)
    what = f"the rows' {_shown(given)} does not go into {column.type}"
    if _is.is_null(given):
        return f"the rows have nothing but NULL for it, and it is {column.type} NOT NULL" if column.not_null else None
    if (element is None) == column.array:
        return f"{what}: {'an array takes lists' if column.array else 'only an array takes lists'}"
    why = _scalar_misfit(given if element is None else element, column)
    return None if why is None else f"{what}: {why}" if why else what


def _scalar_misfit(type: pa.DataType, column: Column) -> str | None:
    """Return why not, perhaps in no words; None when it fits."""
    if _is.is_dictionary(type):
        return _scalar_misfit(type.value_type, column)
    base = column.base
    is_known = base in _TAKES or base in TEXTS
    if column.kind not in "be" or is_known == (column.kind == "e"):  # an enum may have any name, but not one of these
        return "no type of the rows goes into such a column"
    if column.array and _foreign_element(column):
        return "arrays of such a domain are not written"
    if _is.is_null(type):
        return None
    if json_text(type):
        return None if base in TEXTS and not column.array else "only text, json and jsonb take JSON"
    if base == "timestamp" and _is.is_timestamp(type) and type.tz:
        return "the column would forget the time zone"
    if base == "timestamptz" and _is.is_timestamp(type) and not type.tz:
        return "the rows have no time zone, and the server's would be put there"
    if base == "float4" and _is.is_float64(type):
        return "digits would be lost"
    if base == "interval" and column.modifier >= 0 and column.modifier & _WHOLE != _WHOLE:
        return "the column drops some fields of an interval"
    taken = _TAKES.get(base, _is_text)
    return None if taken(type) else ""


def _foreign_element(column: Column) -> bool:
    """Return whether an array's elements are of a domain over a type that only pgpq writes, which knows no domains."""
    known = ELEMENTS.get(column.base)
    return known is not None and column.element not in (0, known)


def cast_for(field: pa.Field, column: Column) -> str | None:
    """Return the expression of Spark SQL that makes a field fit a column; None when there is none."""
    name, list_of = "`" + field.name.replace("`", "``") + "`", element_of(field.type)
    if list_of is not None and not column.array:
        return f"to_json({name})" if column.base in TEXTS else None
    if list_of is None and column.array:
        return f"array({name})" if _scalar_misfit(field.type, column) is None else None
    if not _can_cast(list_of or field.type, column):
        return None
    spark = "STRING" if column.base in TEXTS or column.kind == "e" else _SPARK.get(column.base)
    if column.base == "numeric":
        precision, scale = column.digits or (38, 18)
        spark = f"DECIMAL({min(precision, 38)},{max(0, min(scale, precision, 38))})"
    if spark is None:
        return None
    return f"CAST({name} AS {f'ARRAY<{spark}>' if column.array else spark})"


def _can_cast(type: pa.DataType, column: Column) -> bool:
    """Return whether Spark casts values of a type to what a column takes."""
    if json_text(type):
        return False
    if _is_text(type):
        return True
    if column.base in ("uuid", "json", "jsonb"):
        return False
    if column.base in ("date", "timestamp", "timestamptz"):
        return bool(_is.is_date(type) or _is.is_timestamp(type))
    if column.base in ("time", "interval"):
        return bool(_is.is_time(type) or _is.is_duration(type) or _is.is_interval(type))
    if column.base == "bytea":
        return False
    if column.base == "bool":
        return bool(_is.is_integer(type) or _is.is_floating(type) or _is.is_decimal(type))
    return column.base in TEXTS or column.kind == "e" or not (_is_bytes(type) or _is.is_temporal(type))


def _shown(type: pa.DataType) -> str:
    return "JSON" if json_text(type) else str(type)


def _is_text(type: pa.DataType) -> bool:
    return bool(_is.is_string(type) or _is.is_large_string(type) or _is.is_string_view(type))


def _is_bytes(type: pa.DataType) -> bool:
    tests = (_is.is_binary, _is.is_large_binary, _is.is_fixed_size_binary, _is.is_binary_view)
    return any(test(type) for test in tests) and not _is.is_decimal(type)


def _is_uuid(type: pa.DataType) -> bool:
    return _is_text(type) or (_is_bytes(type) and (not _is.is_fixed_size_binary(type) or type.byte_width == 16))


def _is_whole(type: pa.DataType) -> bool:
    return bool(_is.is_integer(type) or (_is.is_decimal(type) and type.scale <= 0))


def _is_binary_number(type: pa.DataType) -> bool:
    return bool(_is.is_floating(type) or _is.is_integer(type))


def _is_exact_number(type: pa.DataType) -> bool:
    return bool(_is.is_decimal(type) or _is.is_integer(type))


_TAKES = {
    "bool": _is.is_boolean,
    "int2": _is_whole,
    "int4": _is_whole,
    "int8": _is_whole,
    "float4": _is_binary_number,
    "float8": _is_binary_number,
    "numeric": _is_exact_number,
    "uuid": _is_uuid,
    "bytea": _is_bytes,
    "date": _is.is_date,
    "timestamp": _is.is_timestamp,
    "timestamptz": _is.is_timestamp,
    "time": _is.is_time,
    "interval": _is.is_duration,
}
