"""Columns without a type of their own on the server become JSON text, made by the JVM."""

from __future__ import annotations

import pyarrow as pa

from exactsink.contract import ConfigError
from exactsink_postgres.rows.fits import JSON, element_of

__all__ = ["shaped"]

_OPTIONS = {  # Spark's defaults leave out NULLs, cut times to milliseconds, and zones to minutes
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_is = pa.types
_KEYS = (_is.is_string, _is.is_large_string, _is.is_integer, _is.is_decimal, _is.is_boolean, _is.is_floating)


def shaped(schema: pa.Schema) -> list[str] | None:
    """Return Spark's expressions for a frame: structs, maps and lists of such become JSON; None where there are none.

    The text is wrapped into a struct, by which the shaped schema reports it from the rows' own text: there `create`
    makes a jsonb. Raises ConfigError for maps whose keys Spark would not write as they are.
    """
    if not any(map(_is_json, schema.types)):
        return None
    for field in schema:
        bad = _bad_key(field.type)
        if bad is not None:
            raise ConfigError(
                f"column {field.name} holds a map with keys of type {bad}, which Spark writes as no JSON text",
                next=f"make them strings in the frame, with transform_keys({_quoted(field.name)}, (k, v) -> ...) say",
            )
    return [_json(field.name) if _is_json(field.type) else _quoted(field.name) for field in schema]


def _json(name: str) -> str:
    options = ", ".join(f"{_literal(key)}, {_literal(value)}" for key, value in _OPTIONS.items())
    text = f"to_json({_quoted(name)}, map({options}))"
    return f"named_struct({_literal(JSON)}, {text}) AS {_quoted(name)}"


def _is_json(kind: pa.DataType) -> bool:
    element = element_of(kind)
    inner = kind if element is None else element
    return bool(_is.is_struct(inner) or _is.is_map(inner) or (element is not None and element_of(inner) is not None))


def _bad_key(kind: pa.DataType) -> pa.DataType | None:
    """Find the type of a map's keys, at any depth, that come out as a bare number, or as the name of an object."""
    if _is.is_map(kind) and not any(test(kind.key_type) for test in _KEYS):
        return kind.key_type
    inner = (_bad_key(kind.field(index).type) for index in range(kind.num_fields))
    return next((bad for bad in inner if bad is not None), None)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
