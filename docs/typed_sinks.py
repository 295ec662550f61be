"""The stub of each backend's package: its options as a typed call, out of their model. `docs/generate.py` writes it."""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, SecretStr

import exactsink_delta
import exactsink_files
import exactsink_iceberg
import exactsink_idempotent_upsert
import exactsink_kafka
import exactsink_postgres
from exactsink.job.config.described import attribute_docstrings, prose
from exactsink.job.registry import Registry, installed_plugins

__all__ = ["STUBS", "stub"]

_CALLS = {
    "delta": (exactsink_delta, "Delta"),
    "files": (exactsink_files, "Files"),
    "iceberg": (exactsink_iceberg, "Iceberg"),
    "idempotent_upsert": (exactsink_idempotent_upsert, "Upsert"),
    "kafka": (exactsink_kafka, "Kafka"),
    "postgres": (exactsink_postgres, "Postgres"),
}
_HEAD = """\
# Made by docs/generate.py of the backend's options. Edit those, not this file.

import os
from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import Unpack

from exactsink.contract import SinkKeys
"""


def stub(backend: str) -> str:
    """Return the stub of a backend's package."""
    package, name = _CALLS[backend]
    registry = Registry(installed_plugins())
    model = registry.load(backend, backend).Options
    others = [other for other in package.__all__ if other != name]
    head = _HEAD + "".join(f"from {vars(package)[o].__module__} import {o} as {o}\n" for o in others)
    reported = attribute_docstrings(model)
    names = [
        f"{key}: {_kind(key, field.annotation)}{'' if field.is_required() else ' = ...'}"
        for key, field in model.model_fields.items()
    ]
    words = [f"{key}: {prose(reported[key])}" for key in model.model_fields]
    lines = [
        line for text in words for line in textwrap.wrap(text, 110, subsequent_indent="    ", break_on_hyphens=False)
    ]
    text = f"Return the table of a sink, for `Job(sinks={{...}})`. {prose(inspect.getdoc(model) or '')}"
    doc = "\n".join([*textwrap.wrap(" ".join(text.split()), 110, break_on_hyphens=False), "", *lines]).replace(
        "\\", "\\\\"
    )
    body = textwrap.indent(f'"""{doc}\n"""', "    ", lambda line: bool(line.strip()))
    arguments = "".join(f"    {each},\n" for each in ["*", *names, "**of_every_sink: Unpack[SinkKeys]"])
    listed = f"__all__ = {_listed(package.__all__)}"
    return f"{_only_used(head, arguments)}\n{listed}\n\ndef {name}(\n{arguments}) -> dict[str, Any]:\n{body}\n"


STUBS: Mapping[Path, str] = {
    Path(package.__file__ or "").with_suffix(".pyi"): name for name, (package, _) in _CALLS.items()
}


def _listed(names: list[str]) -> str:
    return f"[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}]"


def _only_used(head: str, arguments: str) -> str:
    """Leave out imports that no argument needs."""
    head = head if "Mapping[" in arguments else head.replace("from collections.abc import Mapping\n", "")
    head = head if "Literal[" in arguments else head.replace("Any, Literal", "Any")
    return head if "os.PathLike" in arguments else head.replace("import os\n", "")


def _kind(key: str, annotation: object) -> str:
    """Spell a type as a program may give it: a secret is a text, a place may be a Path."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(key, inner[0])
    if origin is typing.Literal:
        return f"Literal{_listed([str(value) for value in inner])}"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_kind(key, kind) for kind in inner))
    if origin is tuple:
        return "list[str] | tuple[str, ...]"
    if origin is not None and issubclass(origin, Mapping):
        return f"Mapping[str, {_kind('', inner[1])}]"
    if annotation is str and (key == "path" or key.endswith("_location")):
        return "str | os.PathLike[str]"
    plain = {str: "str", SecretStr: "str", int: "int", float: "float", bool: "bool", type(None): "None"}
    return plain[typing.cast("type[BaseModel]", annotation)]
