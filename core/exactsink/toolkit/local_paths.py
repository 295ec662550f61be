"""Local paths as a job's file gives them: one place has one name, whoever starts the job from wherever."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["absolute_path", "real_path"]


def absolute_path(path: str, context: Any = None) -> str:
    """Return a path with `~` expanded, and a relative one taken from the job file's folder.

    `context` is what pydantic's validation was called with (`info.context`): its `folder` is the job file's; without
    it, paths are taken from the working folder. Raises ValueError for a user that nobody knows.
    """
    try:
        place = Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path}: no such user") from None
    folder = context.get("folder") if isinstance(context, Mapping) else None
    return os.path.abspath(Path(folder or ".") / place)


def real_path(path: str, context: Any = None) -> str:
    """Return the same with symbolic links resolved: two ways to one place are one name."""
    return os.path.realpath(absolute_path(path, context))
