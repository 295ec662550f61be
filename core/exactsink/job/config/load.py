"""Read a job's file into a checked config: every mistake is named with its file, line and the nearest known key."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from exactsink.contract import ConfigError
from exactsink.job.config.model import JobConfig, SinkSection
from exactsink.job.config.toml import Document, KeyPath, read_document
from exactsink.protocol.commit import all_before

__all__ = ["config_error", "load_config"]


def load_config(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> tuple[JobConfig, Document]:
    """Read a job's file; the document knows the line of each key. Raises ConfigError; secrets are never shown."""
    document = read_document(Path(path), os.environ if environ is None else environ)
    values = dict(document.values)
    if "options" in values:  # a field of JobConfig, and no table of the file
        place = document.place(("options",))
        raise ConfigError(f"{place}: unknown key options", why="options stand in their sink's table", next="move them")
    sinks = values.get("sinks")
    if isinstance(sinks, dict) and all(isinstance(sink, dict) for sink in sinks.values()):
        core = set(SinkSection.model_fields)
        values["sinks"] = {n: {k: v for k, v in sink.items() if k in core} for n, sink in sinks.items()}
        values["options"] = {n: {k: v for k, v in sink.items() if k not in core} for n, sink in sinks.items()}
    try:
        config = JobConfig.model_validate(values, context={"folder": document.folder})
    except ValidationError as error:
        raise config_error(error, document, (), JobConfig) from None
    _check_after(config, document)
    _check_quarantines(config, document)
    return config, document


def _check_after(config: JobConfig, document: Document) -> None:
    """Refuse a sink that comes after none of this job, or after itself. Raises ConfigError."""
    after = {name: sink.after for name, sink in config.sinks.items()}
    for name, firsts in after.items():
        place = document.place(("sinks", name, "after"))
        for first in firsts:
            if first not in config.sinks:
                near = _nearest(first, config.sinks)
                raise ConfigError(f"{place}: the job has no sink {first}{near}", next="name another sink of this job")
        if name in all_before(after)[name]:
            why = "each waits for the other, so none of them would ever be committed"
            raise ConfigError(f"{place}: sink {name} comes after itself", why=why, next="take one `after` away")


def _check_quarantines(config: JobConfig, document: Document) -> None:
    """Refuse a quarantine that is none of this job's sinks, or more than that. Raises ConfigError."""
    for name, section in config.sinks.items():
        if section.quarantine is None:
            continue
        place, found = document.place(("sinks", name, "quarantine")), config.sinks.get(section.quarantine)
        if found is None:
            near = _nearest(section.quarantine, config.sinks)
            raise ConfigError(
                f"{place}: the job has no sink {section.quarantine}{near}",
                next=f"make [sinks.{section.quarantine}], or name another sink of this job",
            )
        own = {"where", "columns", "distribution", "epoch_column", "quarantine"} & found.model_fields_set
        if own:
            raise ConfigError(
                f"{place}: sink {section.quarantine} has {', '.join(sorted(own))}, and can't be a quarantine",
                why="its rows are other sinks' bad ones, never rows of the frame: columns `id`, `sink`, `epoch`, "
                "`reason` and `row`, in the partitions of those",
                next=f"take that out of [sinks.{section.quarantine}], or make a sink of its own for bad rows",
            )


def config_error(
    error: ValidationError, document: Document, base: KeyPath, model: type[BaseModel], also: Iterable[str] = ()
) -> ConfigError:
    """Report all mistakes that validation found below `base`; `also` are keys that stand beside the model's own."""
    lines = []
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        path: KeyPath = (*base, *found["loc"])
        name = ".".join(str(key) for key in path)
        if found["type"] == "extra_forbidden":
            text = f"unknown key {name}{_nearest(str(path[-1]), _known(model, found['loc'][:-1], also))}"
        elif found["type"] == "missing":
            text = f"{name} is missing"
        else:
            text = f"{name}: {found['msg'].removeprefix('Value error, ')}"
        lines.append(f"{document.place(path)}: {document.scrubbed(text)}")
    return ConfigError("\n".join(lines), next=f"fix {document.name}, then `exactsink check {document.name}`")


def _nearest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _known(model: type[BaseModel], loc: tuple[Any, ...], also: Iterable[str]) -> set[str]:
    """Find the keys that the table at `loc` may have."""
    for key in loc:
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        for inner in (annotation, *getattr(annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return {field.alias or name for name, field in model.model_fields.items() if not field.exclude}.union(also)
