"""The ways to measure: every way that a job's sinks could choose, or those that need no server."""

from __future__ import annotations

import importlib
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
"""The prefix of every name that a bench makes."""

_CONF: Mapping[str, str | int | float | bool] = {
    "spark.ui.enabled": False,
    "spark.log.level": "OFF",  # an error is raised as an exception anyway
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": 2,
}


@dataclass(frozen=True, slots=True)
class Base:
    """The settings that all measured jobs share with the user's job, if any; and the prefix of this bench's names."""

    config: JobConfig
    document: Document = field(repr=False)
    prefix: str
    folder: Path
    """The folder of the bench: beside the job's checkpoint, so on the same disk, and shared with executors like it."""
    own_rows: bool
    """Whether rows are made, not read from a job's source."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write: a backend's target, for a sink with these options."""

    name: str
    kind: str
    target: BenchTarget
    section: SinkSection
    options: Mapping[str, Any] = field(repr=False)
    task_options: Mapping[str, Any] = field(repr=False)
    sink: str = ""
    """The user's sink, empty if there is none."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways to measure, and the ones that can't be measured, with the reason."""

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
    """Find every way of the job's sinks. Without a job, find those of all backends that need no server."""
    found: dict[str, Callable[[], Sequence[Way]]] = {}
    if base.own_rows:
        found = {listing.name: partial(_embedded, listing.name, registry) for listing in registry.listings()}
    else:
        for name, sink in bind_sinks(base.config, base.document, registry).items():
            found[name] = partial(_of_sink, base, name, sink.backend, registry)
    measured: list[Way] = []
    skipped = {}
    for name, ways in found.items():
        try:
            measured += ways()
        except ExactsinkError as error:
            skipped[name] = base.document.scrubbed(reason(error))
    return Ways(measured, skipped)


def _embedded(kind: str, registry: Registry) -> Sequence[Way]:
    targets, section = _targets(kind, registry, None), SinkSection(backend=kind)
    return [Way(f"{kind} {name}", kind, target, section, {}, {}) for name, target in targets.items()]


def _of_sink(base: Base, name: str, backend: Backend, registry: Registry) -> Sequence[Way]:
    section, given = base.config.sinks[name], base.document.task_values["sinks"][name]
    task_options = {key: value for key, value in given.items() if key not in SinkSection.model_fields}
    return [
        Way(f"{name} {way}", section.backend, target, section, base.config.options[name], task_options, name)
        for way, target in _targets(section.backend, registry, backend.options).items()
    ]


def reason(error: ExactsinkError) -> str:
    """Return why a way is left out: the error's text without its next command."""
    return f"{error.what}: {error.why}" if error.why else error.what


def _targets(kind: str, registry: Registry, options: BackendOptions | None) -> Mapping[str, BenchTarget]:
    """Return a backend's ways. Raises ConfigError if it has none, or if its plugin can't be loaded."""
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
        raise ConfigError("its targets for a bench can't be loaded", why=why, next=spec.install) from error
    return targets
