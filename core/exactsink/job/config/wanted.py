"""Describe the right value, in words and with a line to write, because pydantic's messages name Python's types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from exactsink.job.config.model import NAME_WANTED, NEW_NAME
from exactsink.toolkit.nearest import nearest

__all__ = ["TABLE_WANTED", "field_of", "keys_of", "new_name", "table_at", "wanted", "written"]

TABLE_WANTED = "a table is wanted"
_KINDS = {
    "bool": "true or false is wanted",
    "dict": TABLE_WANTED,
    "float": "a number is wanted",
    "int": "a whole number is wanted",
    "list": "a list is wanted",
    "mapping": TABLE_WANTED,
    "model": TABLE_WANTED,
    "string": "text in quotes is wanted",
    "tuple": "a list is wanted",
}
"""The wanted values, by the beginning of pydantic's names of such errors."""

_PLAIN = re.compile(r"[\w .-]+")
"""Text that needs no escapes in TOML. An escaped secret would not be recognized, and so it would be shown."""


def wanted(found: ErrorDetails, key: str, field: FieldInfo | None) -> str:
    """Return the value that `key` should have, and a line to write if one is known.

    The given value is repeated only if a list of it is wanted.
    """
    kind, given, context = found["type"], found["input"], found.get("ctx", {})
    example = written(key, field)
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"one of {', '.join(map(json.dumps, choices))} is wanted{nearest(given, choices)}"
    if kind == "string_pattern_mismatch" and context["pattern"] == NEW_NAME:
        return f'{NAME_WANTED}: write {key} = "{new_name(given) or "orders"}"'
    if kind == "string_pattern_mismatch":
        return f"{example or 'other text is wanted'} (it has to match {context['pattern']})"
    if kind in ("string_too_short", "too_short") and not given:
        return f"it is empty{example and f': {example}'}"
    words = _KINDS.get(kind.partition("_")[0]) if kind.endswith(("_type", "_parsing", "_from_float")) else None
    if words is None:
        return str(found["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if words == _KINDS["tuple"] and isinstance(given, str) and _PLAIN.fullmatch(given):
        example = f'write {key} = ["{given}"]'
    return f"{words}{example and f': {example}'}"


def new_name(text: str) -> str:
    """Return the nearest valid name of a job or a sink; empty for text that a message must not repeat."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] if _PLAIN.fullmatch(text) else ""


def written(key: str, field: FieldInfo | None) -> str:
    """Return a line of TOML with an option's example, or its default; empty if it has neither."""
    known = [] if field is None else [*(field.examples or ()), field.default]
    shown = next((value for value in known if isinstance(value, bool | int | float | str | list) and value != ""), None)
    return "" if shown is None else f"write {key} = {json.dumps(shown, ensure_ascii=False)}"


def field_of(model: type[BaseModel], key: object) -> FieldInfo | None:
    """Return a model's field for a key of its table, None if there is none."""
    fields = model.model_fields.items()
    return next((field for name, field in fields if (field.alias or name) == key and not field.exclude), None)


def keys_of(model: type[BaseModel]) -> set[str]:
    """Return the keys that a model's table may have."""
    return {field.alias or name for name, field in model.model_fields.items() if not field.exclude}


def table_at(model: type[BaseModel], loc: Iterable[Any]) -> type[BaseModel]:
    """Return the model of the table at `loc`, or of the nearest one above it."""
    for key in loc:
        annotation = getattr(field_of(model, key), "annotation", None)
        for inner in (annotation, *getattr(annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return model
