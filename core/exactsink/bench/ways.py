"""What is measured: every way to write that a job's sinks could choose, or those that need no server."""

from __future__ import annotations

import importlib
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exactsink.bench.target import BenchTarget
from exactsink.contract import Backend, BackendOptions, ConfigError, ExactsinkError
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.config.model import JobSection, SinkSection, SparkSection
from exactsink.job.config.toml import Document
from exactsink.job.registry import Registry

__all__ = ["PREFIX", "Base", "Ways", "Way", "base_of", "find_ways", "reason"]

PREFIX = "bench-exactsink-"
"""What the name of all that a bench makes begins with."""

_CONF: Mapping[str, str | int | float | bool] = {
    "spark.ui.enabled": False,
    "spark.log.level": "OFF",  # an error comes as an exception
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": 2,
}


@dataclass(frozen=True, slots=True)
class Base:
    """What the measured jobs have in common with the user's, or with nobody's; and the prefix of this bench's names."""

    config: JobConfig
    document: Document = field(repr=False)
    prefix: str
    folder: Path
    """Where a bench works: beside the job's checkpoint, so on its disk, and shared with executors as that is."""
    own_rows: bool
    """Whether rows are made, not read from a job's source."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write: a target of a backend, for a sink with these core options and own options."""

    name: str
    kind: str
    target: BenchTarget
    section: SinkSection
    options: Mapping[str, Any] = field(repr=False)
    task_options: Mapping[str, Any] = field(repr=False)
    sink: str = ""
    """The user's sink; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What is measured, and what is not, with the reason."""

    measured: Sequence[Way]
    skipped: Mapping[str, str]


def base_of(path: str | None) -> Base:
    """Read the job's file, or make a job without one. Raises ConfigError."""
    prefix = PREFIX + secrets.token_hex(3)
    if path is not None:
        config, document = load_config(path)
        beside = config.checkpoint.with_name(prefix)
        if not isinstance(beside, Path):
            raise ConfigError(
                f"a bench works in a folder beside the checkpoint, and {config.checkpoint} is in an object store",
                next="measure with a copy of the job's file whose checkpoint is a local folder",
            )
        return Base(config, document, prefix, beside, own_rows=False)
    folder = Path(tempfile.gettempdir(), prefix)
    job = JobSection(name=prefix, checkpoint=str(folder / "checkpoint"))
    spark = SparkSection(master="local[*]", conf=_CONF)
    config = JobConfig(job=job, spark=spark, sinks={"out": SinkSection(backend="none")}, options={"out": {}})
    return Base(config, Document("bench", "", {"sinks": {}}, frozenset()), prefix, folder, own_rows=True)


def find_ways(base: Base, registry: Registry) -> Ways:
    """Find every way of the job's sinks; without a job, those of all backends that need no server."""
    if base.own_rows:
        return _found(_embedded(listing.name, registry) for listing in registry.listings())
    sinks = bind_sinks(base.config, base.document, registry)
    return _found(_of_sink(base, name, sinks[name].backend, registry) for name in base.config.sinks)


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    ways: Sequence[Way] = ()
    skipped: str = ""


def _found(parts: Iterable[_Found]) -> Ways:
    listed = list(parts)
    measured = [way for part in listed for way in part.ways]
    return Ways(measured, {part.name: part.skipped for part in listed if part.skipped})


def _embedded(kind: str, registry: Registry) -> _Found:
    try:
        targets = _targets(kind, registry, None)
    except ExactsinkError as error:
        return _Found(kind, skipped=reason(error))
    section = SinkSection(backend=kind)
    return _Found(kind, [Way(f"{kind} {name}", kind, target, section, {}, {}) for name, target in targets.items()])


def _of_sink(base: Base, name: str, backend: Backend, registry: Registry) -> _Found:
    section, document = base.config.sinks[name], base.document
    try:
        targets = _targets(section.backend, registry, backend.options)
    except ExactsinkError as error:
        return _Found(name, skipped=document.scrubbed(reason(error)))
    core = SinkSection.model_fields
    options = base.config.options[name]
    task_options = {key: value for key, value in document.task_values["sinks"][name].items() if key not in core}
    return _Found(
        name,
        [
            Way(f"{name} {way}", section.backend, target, section, options, task_options, name)
            for way, target in targets.items()
        ],
    )


def reason(error: ExactsinkError) -> str:
    """Return why something is left out: what the error says, without the command that would come next."""
    return f"{error.what}: {error.why}" if error.why else error.what


def _targets(kind: str, registry: Registry, options: BackendOptions | None) -> Mapping[str, BenchTarget]:
    """Return a backend's ways. Raises ConfigError where it has none, or its plugin can't be had."""
    spec = registry.spec(kind, "exactsink bench")
    if not spec.bench:
        raise ConfigError("its plugin has no targets for a bench", why="its BackendSpec names no `bench` function")
    registry.load(kind, "exactsink bench")
    module, _, function = spec.bench.partition(":")
    try:
        targets: Mapping[str, BenchTarget] = getattr(importlib.import_module(module), function)(options)
    except ExactsinkError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError("its targets for a bench can't be had", why=why, next=spec.install) from error
    return targets
