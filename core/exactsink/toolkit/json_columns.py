"""Columns without a type of their own in a database become JSON text, made by the JVM."""

from __future__ import annotations

import pyarrow as pa

from exactsink.contract import ConfigError

__all__ = ["element_of", "is_json_text", "json_expressions", "spark_quoted"]

_FIELD = "json"  # the one field of a struct that marks JSON text: once shaped, rows have no other structs
_OPTIONS = {  # Spark's defaults leave out NULLs, cut times to milliseconds, and zones to minutes
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_is = pa.types
_TEXTS = (_is.is_string, _is.is_large_string, _is.is_string_view)
_KEYS = (_is.is_string, _is.is_large_string, _is.is_integer, _is.is_decimal, _is.is_boolean, _is.is_floating)
_LISTS = (_is.is_list, _is.is_large_list, _is.is_fixed_size_list, _is.is_list_view, _is.is_large_list_view)


def json_expressions(schema: pa.Schema) -> list[str] | None:
    """Return Spark's expressions that make JSON of structs, maps and lists of such; None when there are none.

    The text is wrapped into a struct, by which `is_json_text` knows it from the rows' own text. Raises ConfigError for
    maps whose keys Spark would not write as they are.
    """
    if not any(map(_is_nested, schema.types)):
        return None
    for field in schema:
        bad = _bad_key(field.type)
        if bad is not None:
            raise ConfigError(
                f"column {field.name} holds a map with keys of type {bad}, which Spark writes as no JSON text",
                next="make them strings in the frame, with "
                f"transform_keys({spark_quoted(field.name)}, (k, v) -> ...) say",
            )
    return [_json(field.name) if _is_nested(field.type) else spark_quoted(field.name) for field in schema]


def is_json_text(type: pa.DataType) -> bool:
    """Return whether values are JSON text that `json_expressions` made."""
    if not _is.is_struct(type) or type.num_fields != 1 or type[0].name != _FIELD:
        return False
    return any(test(type[0].type) for test in _TEXTS)


def element_of(type: pa.DataType) -> pa.DataType | None:
    """Return the type of a list's elements; None for what is no list."""
    return type.value_type if any(test(type) for test in _LISTS) else None


def spark_quoted(name: str) -> str:
    """Quote a column's name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _json(name: str) -> str:
    options = ", ".join(f"{_literal(key)}, {_literal(value)}" for key, value in _OPTIONS.items())
    text = f"to_json({spark_quoted(name)}, map({options}))"
    return f"named_struct({_literal(_FIELD)}, {text}) AS {spark_quoted(name)}"


def _is_nested(type: pa.DataType) -> bool:
    element = element_of(type)
    inner = type if element is None else element
    return bool(_is.is_struct(inner) or _is.is_map(inner) or (element is not None and element_of(inner) is not None))


def _bad_key(type: pa.DataType) -> pa.DataType | None:
    """Find the type of a map's keys, at any depth, that come out as a bare number, or as the name of an object."""
    if _is.is_map(type) and not any(test(type.key_type) for test in _KEYS):
        return type.key_type
    inner = (_bad_key(type.field(index).type) for index in range(type.num_fields))
    return next((bad for bad in inner if bad is not None), None)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
