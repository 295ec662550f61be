"""Exactly-once output from PySpark to several stores, committed together. Light to import: executors do so."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exactsink.spark.batch import RunResult
    from exactsink.spark.job import Job
    from exactsink.spark.query import Query

__all__ = ["Job", "Query", "RunResult", "__version__"]

__version__ = "0.1.0"

_HOMES = {"Job": "job", "Query": "query", "RunResult": "batch"}


def __getattr__(name: str) -> object:
    """Import what needs Spark only when it is asked for. A typed sink's name raises an error that says where it is."""
    if name in _HOMES:
        return getattr(import_module(f"exactsink.spark.{_HOMES[name]}"), name)
    if name[:1].isupper() and (package := _package_with(name)):
        raise ImportError(f"{name} is in its backend's package: from {package} import {name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _package_with(name: str) -> str | None:
    """Return the installed backend's package that has a typed sink of this name."""
    for plugin in entry_points(group=__name__):
        package = plugin.module.partition(".")[0]
        with suppress(ImportError):
            if name in getattr(import_module(package), "__all__", ()):
                return package
    return None
