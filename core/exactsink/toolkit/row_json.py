"""Write single rows as JSON, even rows with values that neither Python nor a database can hold."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pyarrow as pa

__all__ = ["row_json", "safe_text"]

_is = pa.types


def row_json(row: pa.RecordBatch) -> str:
    """Return a batch's only row as one JSON object in ASCII, which any store takes.

    Whole numbers and finite floats are JSON numbers. Decimals, times and NaN are texts, bytes are Base64, maps are
    lists of pairs. Bytes of a text that are not UTF-8 are written as `\\xff`. If two columns share a name, the later
    one gets its place appended.
    """
    members: dict[str, Any] = {}
    for place, (name, column) in enumerate(zip(row.schema.names, row.columns, strict=True)):
        members[name if name not in members else f"{name} ({place})"] = _value(column[0])
    return json.dumps(members)


def safe_text(text: str) -> str:
    """Return a text that every store takes: without NUL, and without bytes that are not UTF-8."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _value(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if _is.is_dictionary(kind):
        return _value(scalar.dictionary[scalar.index.as_py()])
    if _is.is_map(kind):
        return [[_value(pair["key"]), _value(pair["value"])] for pair in scalar.values]
    if _is.is_struct(kind):
        return {kind[place].name: _value(scalar[place]) for place in range(kind.num_fields)}
    if _is.is_nested(kind):
        return [_value(item) for item in scalar.values]
    if _is.is_boolean(kind) or _is.is_integer(kind):
        return scalar.as_py()
    if _is.is_floating(kind):
        number = scalar.as_py()
        return number if math.isfinite(number) else str(number)
    return _text(scalar)


def _text(scalar: pa.Scalar) -> str:
    kind = scalar.type
    if _is.is_string(kind) or _is.is_large_string(kind) or _is.is_string_view(kind):
        return bytes(scalar.as_buffer()).decode(errors="backslashreplace")
    if hasattr(scalar, "as_buffer"):
        return base64.b64encode(scalar.as_buffer()).decode()
    text = str(scalar.cast(pa.string()).as_py())
    return str(scalar.value) if text.startswith("<") else text  # Arrow can't format this time, so write its number
