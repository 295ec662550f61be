"""The JSON schema of a job's file, for editors: made from the models that check the file, and the installed backends.

It accepts each file that they accept. Only `exactsink check` knows the rules about several keys, or about a server.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from exactsink.job.config.described import attribute_docstrings, prose, sections
from exactsink.job.config.model import NEW_NAME, JobConfig, SinkSection, TransformSection
from exactsink.job.registry import Registry, installed_plugins

__all__ = ["job_schema", "schema_text"]

_Schema = dict[str, Any]
_VARIABLE: _Schema = {"type": "string", "pattern": r"\$\{[^}]+\}"}
"""A value of any type that the environment fills in."""

_CLOSED = ("pattern", "enum", "const")
"""Keywords that limit a string, so that a string with a variable would be refused."""

_OF_PYTHON = ("title", "format", "writeOnly")


def job_schema(registry: Registry) -> _Schema:
    """Return the schema (draft 2020-12). A sink's table must fit one of the backends that can be used here."""
    names = [listing.name for listing in registry.listings() if not listing.problem]
    backends = {name: _sink(name, registry) for name in names}
    tables = {name: _table(model) for name, model in sections().items() if model is not SinkSection}
    tables["transform"]["oneOf"] = [{"required": [key]} for key in TransformSection.model_fields]
    by_variable = {"properties": {"backend": _VARIABLE}}
    sink = {
        "type": "object",
        "required": ["backend"],
        "properties": {"backend": {"anyOf": [{"enum": names}, _VARIABLE]}},
        # Editors complete from the alternatives of oneOf. Few of them read if and then.
        "oneOf": [*({"$ref": f"#/$defs/{name}"} for name in backends), by_variable],
    }
    named = {"type": "object", "minProperties": 1, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job of exactsink",
        "type": "object",
        "required": [name for name, field in JobConfig.model_fields.items() if field.is_required()],
        "properties": {**tables, "sinks": {**named, "patternProperties": {NEW_NAME: sink}}},
        "additionalProperties": False,
        "not": {"required": ["job", "transform"], "properties": {"job": {"required": ["transform"]}}},
        "$defs": backends,
    }


def schema_text() -> str:
    """Return the text of `job.schema.json`: the schema with the backends that are installed here."""
    return json.dumps(job_schema(Registry(installed_plugins())), indent=1, ensure_ascii=False) + "\n"


def _sink(name: str, registry: Registry) -> _Schema:
    """Return the schema of a sink's table with this backend: the core's keys, and the backend's own."""
    core = _table(SinkSection)
    try:
        own = _table(registry.load(name, name).Options)
    except PydanticInvalidForJsonSchema:  # a plugin's type that only Python knows
        own = {"type": "object", "required": [], "properties": {}}
    backend = {**core["properties"]["backend"], "const": name}
    return {
        **own,
        "title": f'backend = "{name}"',
        "required": sorted({*core["required"], *own["required"]}),
        "properties": {**core["properties"], "backend": backend, **own["properties"]},
    }


def _table(model: type[BaseModel]) -> _Schema:
    made, said = model.model_json_schema(), attribute_docstrings(model)
    properties = {key: _filled(_plain(part)) for key, part in made["properties"].items()}
    for name, field in model.model_fields.items():
        if (text := said.get(name) or field.description) is not None:
            properties[field.alias or name]["description"] = text
    return {
        "type": "object",
        "description": prose(inspect.getdoc(model) or ""),
        "required": made.get("required", []),
        "properties": properties,
        "additionalProperties": False,
    }


def _plain(part: Mapping[str, Any]) -> _Schema:
    """Return a key's schema without values that TOML lacks, for example null. A nested model allows anything."""
    if "$ref" in part or "allOf" in part:
        return {}
    kept = {name: value for name, value in part.items() if name not in _OF_PYTHON and value is not None}
    if isinstance(kept.get("items"), dict):
        kept["items"] = _plain(kept["items"])
    if isinstance(kept.get("additionalProperties"), dict):
        kept["additionalProperties"] = _plain(kept["additionalProperties"])
    options = [_plain(option) for option in kept.pop("anyOf", ()) if option.get("type") != "null"]
    return kept | (options[0] if len(options) == 1 else {"anyOf": options} if options else {})


def _filled(part: _Schema) -> _Schema:
    """Allow a variable in place of every value that does not already allow any text."""
    for name in ("items", "additionalProperties"):
        if isinstance(part.get(name), dict):
            part = {**part, name: _filled(part[name])}
    if part.get("type") in ("array", "object"):
        return part
    options = part.get("anyOf", [part])
    if any(option.get("type") == "string" and not option.keys() & set(_CLOSED) for option in options):
        return part
    default = {name: part[name] for name in ("default",) if name in part}
    parts = [{key: value for key, value in option.items() if key != "default"} for option in options]
    return {"anyOf": [*parts, _VARIABLE], **default}
