"""Packages that an extra of pip brings: which of them are missing."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

__all__ = ["missing"]


def missing(modules: Iterable[str]) -> str:
    """Return which modules can't be imported, all of them at once; empty when all can. It imports them."""
    absent, broken = [], []
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a driver without its library raises any error
            if isinstance(error, ModuleNotFoundError) and error.name == module:
                absent.append(module)
            else:
                broken.append(f"{module}: {type(error).__name__}: {error}")
    return "; ".join([*([f"not installed: {', '.join(absent)}"] if absent else []), *broken])
