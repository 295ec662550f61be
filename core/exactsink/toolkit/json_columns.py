"""Make JSON text, in the JVM, of columns whose type a database lacks."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from exactsink.contract import ConfigError
from exactsink.toolkit.spark_sql import EXACT_TIMES, quoted_name, quoted_text, text_map

__all__ = ["JSON_OPTIONS", "check_map_keys", "element_of", "is_json_text", "json_expressions", "plain"]

_FIELD = "json"  # the one field of a struct that marks JSON text: once shaped, rows have no other structs
JSON_OPTIONS: Mapping[str, str] = {"ignoreNullFields": "false", **EXACT_TIMES}
"""Options of to_json. By default it leaves out NULLs and cuts times."""
_is = pa.types
_TEXTS = (_is.is_string, _is.is_large_string, _is.is_string_view)
_KEYS = (_is.is_string, _is.is_large_string, _is.is_integer, _is.is_decimal, _is.is_boolean, _is.is_floating)
_LISTS = (_is.is_list, _is.is_large_list, _is.is_fixed_size_list, _is.is_list_view, _is.is_large_list_view)


def json_expressions(schema: pa.Schema) -> list[str] | None:
    """Return Spark's expressions that turn structs, maps, and lists of them into JSON; None if no column needs it.

    The text is wrapped in a struct, so that `is_json_text` can distinguish it from text. Raises ConfigError for a
    map whose keys Spark would not write into JSON unchanged.
    """
    if not any(map(_is_nested, schema.types)):
        return None
    check_map_keys(schema)
    return [_json(field.name) if _is_nested(field.type) else quoted_name(field.name) for field in schema]


def is_json_text(type: pa.DataType) -> bool:
    """Return whether values are JSON text that `json_expressions` made."""
    if not _is.is_struct(type) or type.num_fields != 1 or type[0].name != _FIELD:
        return False
    return any(test(type[0].type) for test in _TEXTS)


def element_of(type: pa.DataType) -> pa.DataType | None:
    """Return the type of a list's elements, None if the type is not a list."""
    return type.value_type if any(test(type) for test in _LISTS) else None


def plain(values: pa.Array) -> pa.Array:
    """Decode a dictionary-encoded array, whose dictionary may hide NULLs, and take JSON text out of its struct."""
    if is_json_text(values.type):
        return values.flatten()[0]
    return values.dictionary_decode() if _is.is_dictionary(values.type) else values


def check_map_keys(schema: pa.Schema) -> None:
    """Raise ConfigError for a map whose keys Spark would not write into JSON unchanged."""
    for field in schema:
        bad = _bad_key(field.type)
        if bad is not None:
            raise ConfigError(
                f"column {field.name} holds a map with keys of type {bad}, which Spark can't write as JSON",
                next=f"make them strings in the frame, with transform_keys({quoted_name(field.name)}, (k, v) -> ...)",
            )


def _json(name: str) -> str:
    text = f"to_json({quoted_name(name)}, {text_map(JSON_OPTIONS)})"
    return f"named_struct({quoted_text(_FIELD)}, {text}) AS {quoted_name(name)}"


def _is_nested(type: pa.DataType) -> bool:
    element = element_of(type)
    inner = type if element is None else element
    return bool(_is.is_struct(inner) or _is.is_map(inner) or (element is not None and element_of(inner) is not None))


def _bad_key(type: pa.DataType) -> pa.DataType | None:
    """Find a key type of a map, at any depth, that Spark writes as a bare number or as the name of an object."""
    if _is.is_map(type) and not any(test(type.key_type) for test in _KEYS):
        return type.key_type
    inner = (_bad_key(type.field(index).type) for index in range(type.num_fields))
    return next((bad for bad in inner if bad is not None), None)
