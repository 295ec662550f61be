"""The base of all sections of a job's config, and the type of settings that go to other programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

__all__ = ["Section", "Settings"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _dotted(value: Any) -> Any:
    """Return settings by their full names, because TOML reads an unquoted `kafka.group.id = "x"` as nested tables."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    for key, item in value.items():
        below = _dotted(item)
        flat |= {f"{key}.{name}": one for name, one in below.items()} if isinstance(below, dict) else {key: item}
    return flat


Settings = Annotated[
    Mapping[str, str | int | float | bool], BeforeValidator(_dotted), WithJsonSchema({"type": "object"})
]
