"""The user's own functions, `module:function`: among what is installed, and in the folders that the job names.

A module in these folders is never passed over silently for another one of its name. The folder in which a job is
started is not searched.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from pyspark.sql import DataFrame

from exactsink.contract import ConfigError
from exactsink.job.config import JobConfig
from exactsink.spark.routes import Route
from exactsink.spark.sql_transform import SqlTransform

__all__ = ["load_route", "load_transform", "search_in"]


def search_in(folders: Sequence[str]) -> None:
    """Let Python look for modules in these folders, here and in workers that start from now on: after all others."""
    sys.path.extend(place for place in folders if place not in sys.path)
    known = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    os.environ["PYTHONPATH"] = os.pathsep.join([*known, *(place for place in folders if place not in known)])


def load_transform(config: JobConfig) -> Callable[[DataFrame], DataFrame]:
    """Import `[job] transform`, or take `[transform]`; the identity when there is neither. Raises ConfigError."""
    if config.transform is not None:
        return SqlTransform(config.transform.key, config.transform.query())
    if config.job.transform is None:
        return lambda frame: frame
    transform: Callable[[DataFrame], DataFrame] = _loaded("transform", config.job.transform, config.job.modules)
    return transform


def load_route(config: JobConfig) -> Route | None:
    """Import `[job] route`. Raises ConfigError."""
    if config.job.route is None:
        return None
    route: Route = _loaded("route", config.job.route, config.job.modules)
    return route


def _loaded(key: str, name: str, folders: Sequence[str]) -> Any:
    search_in(folders)
    module, _, function = name.partition(":")
    _check_one(key, name, folders)
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key} {name} can't be imported",
            why=f"{error}; looked for in {', '.join(folders)} and among what is installed, PYTHONPATH included",
            next='put the module beside the job\'s file, or name its folder: [job] modules = [".", "FOLDER"]',
        ) from error


def _check_one(key: str, name: str, folders: Sequence[str]) -> None:
    """Refuse a module in the job's folders that Python would pass over. Imports nothing."""
    module = name.partition(":")[0]
    own = _file_of(module, folders)
    loaded = sys.modules.get(module)
    first = _file_of(module, sys.path) if loaded is None else getattr(loaded, "__file__", None)
    top = module.partition(".")[0]
    if own is not None and (first is None or os.path.realpath(first) != os.path.realpath(own)):
        raise ConfigError(
            f"{key} {name}: {own} is not the module that Python finds by this name",
            why=f"that is {first or 'a built-in one'}",
            next=f"give {top} in {', '.join(folders)} another name",
        )


def _file_of(module: str, folders: Sequence[str]) -> str | None:
    """Return the file that a dotted name means below these folders, without running anything of it."""
    if module.partition(".")[0] in sys.builtin_module_names and folders is sys.path:
        return None
    names, places = module.split("."), list(folders)
    spec: ModuleSpec | None = None
    for count in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:count]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec.origin if spec is not None else None
