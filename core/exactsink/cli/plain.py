"""Convert values to JSON's types, for everything that `--json` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["plain", "print_json"]


def plain(value: Any) -> Any:
    """Return a value in JSON's types: a dataclass by its fields, a set in order, an error as its text."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, BaseException):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(plain(value), indent=1))
