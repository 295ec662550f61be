"""Describe the machine of a measurement, without its name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from exactsink.bench.machine import machine_facts, version_of

__all__ = ["commit", "machine"]

_ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    """Describe the machine and the relevant versions, with the present load."""
    return {
        **machine_facts(),
        **{name: version_of(name) or "absent" for name in ("pyspark", "pyarrow", "sqlalchemy")},
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def commit() -> str:
    """Name the measured commit, with `+changes` if the tree differs from it; `unknown` outside git."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return (head + ("+changes" if _git("status", "--porcelain") else "")) if head else "unknown"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", _ROOT, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
