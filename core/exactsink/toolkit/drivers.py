"""Find which of a backend's packages, the ones that an extra of pip installs, are missing."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

__all__ = ["missing"]


def missing(modules: Iterable[str]) -> str:
    """Return the names of the modules that can't be imported; empty if all can. It imports each of them."""
    absent, broken = [], []
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a driver whose library is missing may raise any error
            if isinstance(error, ModuleNotFoundError) and error.name == module:
                absent.append(module)
            else:
                broken.append(f"{module}: {type(error).__name__}: {error}")
    return "; ".join([*([f"not installed: {', '.join(absent)}"] if absent else []), *broken])
