"""Exactly-once output from PySpark to several stores, committed together. Light to import: executors do so."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exactsink.spark.batch import RunResult
    from exactsink.spark.job import Job
    from exactsink.spark.query import Query

__all__ = ["Job", "Query", "RunResult", "__version__"]

__version__ = "0.1.0"

_HOMES = {"Job": "job", "Query": "query", "RunResult": "batch"}


def __getattr__(name: str) -> object:
    """Import what needs Spark only when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"exactsink.spark.{_HOMES[name]}"), name)
