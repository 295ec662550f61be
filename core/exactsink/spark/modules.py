"""The functions that a job applies to frames: the user's own, `module:function`, or its query."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from exactsink.job.config import JobConfig
from exactsink.job.modules import find_module, not_importable, search_in
from exactsink.spark.routes import Route
from exactsink.spark.sql_transform import SqlTransform

__all__ = ["load_route", "load_transform"]


def load_transform(config: JobConfig) -> Callable[[DataFrame], DataFrame]:
    """Import `[job] transform`, or make one of `[transform]`; without both, the identity. Raises ConfigError."""
    if config.transform is not None:
        return SqlTransform(config.transform.key, config.transform.query())
    if config.job.transform is None:
        return lambda frame: frame
    transform: Callable[[DataFrame], DataFrame] = _loaded("transform", config.job.transform, config.job.modules)
    return transform


def load_route(config: JobConfig) -> Route | None:
    """Import `[job] route`; None if there is none. Raises ConfigError."""
    if config.job.route is None:
        return None
    route: Route = _loaded("route", config.job.route, config.job.modules)
    return route


def _loaded(key: str, name: str, folders: Sequence[str]) -> Any:
    search_in(folders)
    module, _, function = name.partition(":")
    find_module(key, name, folders)
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise not_importable(key, name, folders, str(error)) from error
