"""Describe the machine of a measurement, without its name."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata

__all__ = ["machine_facts", "version_of"]


def machine_facts() -> Mapping[str, int | float | str]:
    """Describe the machine and its Python."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def version_of(package: str) -> str | None:
    """Return an installed package's version, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
