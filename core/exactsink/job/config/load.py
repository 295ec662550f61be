"""Read a job's file into a checked config. Every mistake is named with its file, line and the nearest known key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from exactsink.contract import BackendOptions, ConfigError
from exactsink.job.commands import Commands
from exactsink.job.config.model import NAME_WANTED, JobConfig, SinkSection, SourceSection, SparkSection
from exactsink.job.config.names import name_here
from exactsink.job.config.toml import Document, KeyPath, read_document
from exactsink.job.config.wanted import TABLE_WANTED, field_of, keys_of, new_name, table_at, wanted, written
from exactsink.protocol.commit import all_before
from exactsink.toolkit.nearest import nearest

__all__ = ["config_error", "config_of", "flags_checked", "load_config"]

_OF_A_UNION = ("bool", "constrained-int", "float", "int", "str", "[key]")
"""Parts that pydantic adds to the place of a wrong key, or of a value that has none of several types."""

_ELSEWHERE: Mapping[type[BaseModel], str] = {
    SourceSection: ": options of the source belong in [source.options]",
    SparkSection: ": Spark's own settings belong in [spark.conf], under their whole names in quotes",
}
"""The right table for keys that people write into these tables."""

_TABLES = {
    "job": "write [job], with name and checkpoint",
    "sinks": "write [sinks.lake], with backend and the backend's options",
}
_URL = re.compile(r"(?P<schemes>([A-Za-z][\w+.-]*:)+)//(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_IN_BRACKETS = re.compile(r"\[[^\]]*\]")
_PORT_AND_NO_LOGIN = ("hdfs:", "viewfs:", "webhdfs:", "swebhdfs:")


def load_config(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> tuple[JobConfig, Document]:
    """Read a job's file. The document knows the line of each key. Raises ConfigError, which never shows a secret."""
    with Commands(os.fspath(path)).named():
        document = read_document(Path(path), os.environ if environ is None else environ)
        config = config_of(document)
        config.read_from(str(path))
        return config, document


def config_of(document: Document) -> JobConfig:
    """Check a job's tables, and return its config. Raises ConfigError, which names each mistake and its place."""
    for key_path, text in _texts(document.values):
        _check_url(text, document, key_path)
    values = dict(document.values)
    if "options" in values:  # a field of JobConfig, but not a table of the file
        place = document.place(("options",))
        raise ConfigError(
            f"{place}: unknown key options", why="options belong in their sink's table", next="move them there"
        )
    sinks = values.get("sinks")
    if isinstance(sinks, dict) and isinstance(sinks.get("backend"), str):
        why = "each sink of a job has a name, which the journal keeps"
        fix = 'write [sinks.lake] in a file, sinks={"lake": ...} in Python'
        raise ConfigError(f"{document.place(('sinks',))}: sinks is one sink without a name", why=why, next=fix)
    if isinstance(sinks, dict) and all(isinstance(sink, dict) for sink in sinks.values()):
        core = set(SinkSection.model_fields)
        values["sinks"] = {n: {k: v for k, v in sink.items() if k in core} for n, sink in sinks.items()}
        values["options"] = {n: {k: v for k, v in sink.items() if k not in core} for n, sink in sinks.items()}
    for name in ("job", "observe"):
        if isinstance(values.get(name), dict):
            values[name] = flags_checked(values[name], table_at(JobConfig, [name]))
    try:
        config = JobConfig.model_validate(values, context={"folder": document.folder})
    except ValidationError as error:
        raise config_error(error, document, (), JobConfig) from None
    _check_after(config, document)
    _check_quarantines(config, document)
    return config


def flags_checked(table: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return a table with None, which is refused, for texts that pydantic alone takes for true or false, such as `yes`.

    `true` and `false` may be texts, because variables are.
    """
    flags = {key for key, field in model.model_fields.items() if field.annotation is bool}
    wrong = {key for key in flags & set(table) if str(table[key]).lower() not in ("true", "false")}
    return {key: None if key in wrong else value for key, value in table.items()}


def _texts(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield every text of a file, with its place."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(below, (*path, key))


def _check_url(text: str, document: Document, path: KeyPath) -> None:
    """Refuse a URL if a part of its password looks like a host or a name, and would be shown. Raises ConfigError."""
    found = _URL.match(text)
    if found is None:
        return
    login, at, host = _IN_BRACKETS.sub("", found["authority"]).rpartition("@")
    has_port = found["schemes"].lower().endswith(_PORT_AND_NO_LOGIN) and host.rpartition(":")[2].isdigit()
    cut_off = "@" in found["rest"] and ":" in (login if at else host) and not has_port
    if "@" in login or cut_off:
        raise ConfigError(
            f"{document.place(path)}: {path[-1]} is a URL that can be read in two ways",
            why="a plain @, /, ? or # may end the password, and messages would show the rest of it as host or name",
            next="write such characters of user, password and names as %40 (@), %2F (/), %3F (?) and %23 (#)",
        )


def _check_after(config: JobConfig, document: Document) -> None:
    """Refuse a sink that comes after an unknown sink, or after itself. Raises ConfigError."""
    after = {name: sink.after for name, sink in config.sinks.items()}
    for name, firsts in after.items():
        place = document.place(("sinks", name, "after"))
        for first in firsts:
            if first not in config.sinks:
                near = nearest(first, config.sinks)
                raise ConfigError(f"{place}: the job has no sink {first}{near}", next="name another sink of this job")
        if name in all_before(after)[name]:
            why = "each waits for the other, so neither would ever be committed"
            raise ConfigError(f"{place}: sink {name} waits for itself", why=why, next="remove one `after`")


def _check_quarantines(config: JobConfig, document: Document) -> None:
    """Refuse a quarantine that the job lacks, or that also gets rows of a frame. Raises ConfigError."""
    for name, section in config.sinks.items():
        if section.quarantine is None:
            continue
        place, found = document.place(("sinks", name, "quarantine")), config.sinks.get(section.quarantine)
        if found is None:
            near = nearest(section.quarantine, config.sinks)
            raise ConfigError(
                f"{place}: the job has no sink {section.quarantine}{near}",
                next=f"make [sinks.{section.quarantine}], or name another sink of this job",
            )
        own = {"where", "columns", "distribution", "epoch_column", "quarantine"} & found.model_fields_set
        if own:
            raise ConfigError(
                f"{place}: sink {section.quarantine} has {', '.join(sorted(own))}, and can't be a quarantine",
                why="it gets bad rows of other sinks only, with the columns `id`, `sink`, `epoch`, "
                "`reason` and `row`, in those sinks' partitions",
                next=f"remove that from [sinks.{section.quarantine}], or make a separate sink for bad rows",
            )


def config_error(
    error: ValidationError, document: Document, base: KeyPath, model: type[BaseModel], also: Iterable[str] = ()
) -> ConfigError:
    """Report all mistakes that validation found below `base`. `also` are keys that the table may have besides."""
    said: dict[KeyPath, list[str]] = {}
    for found in error.errors(include_url=False):
        loc = found["loc"]
        inner = loc[:-1] if loc and loc[-1] in _OF_A_UNION else loc
        path = (*base, *inner)
        name = ".".join(map(str, path))
        said.setdefault(path, []).append(_mistake(found, name, inner, model, also))
    mistakes = {path: document.scrubbed(_one_of(texts)) for path, texts in said.items()}
    if document.text is None:  # each names its key
        return ConfigError("\n".join(mistakes.values()), next=document.fix)
    lines = [f"{document.place(path)}: {mistake}" for path, mistake in mistakes.items()]
    return ConfigError("\n".join(lines), next=document.fix)


def _one_of(texts: list[str]) -> str:
    """Merge the sentences about a value that has none of several types. Each has the same name and example."""
    first, *others = texts
    head, write, example = first.partition(": write ")
    also = [other.partition(": write ")[0].partition(": ")[2] for other in others]
    return f"{', or '.join([head, *also])}{write}{example}"


def _mistake(found: ErrorDetails, name: str, loc: KeyPath, model: type[BaseModel], also: Iterable[str]) -> str:
    """Return the mistake in the key `name`, or in its value. `loc` is its place below the model."""
    key, table = str(loc[-1]) if loc else name, table_at(model, loc[:-1])
    if found["type"] == "extra_forbidden":
        if key == "spark" or key.startswith("spark."):
            return f"unknown key {name}{_ELSEWHERE[SparkSection]}"
        known = {*keys_of(table), *(() if loc[:-1] else also)}
        here = name_here(key, known, backend=issubclass(table, BackendOptions))
        return f"unknown key {name}{here or _ELSEWHERE.get(table, '')}"
    if found["type"] == "missing":
        example = _TABLES.get(name) or written(key, field_of(table, key))
        return f"{name} is missing{example and f': {example}'}"
    if found["loc"][-1:] == ("[key]",):
        return f"{name}: {NAME_WANTED}: write [sinks.{new_name(key) or 'lake'}]"
    if (said := wanted(found, key, field_of(table, key))) == TABLE_WANTED:
        said += f": [{'sinks.lake' if name == 'sinks' else name}] in a file, a dict in Python"
    return f"{name}: {said}"
