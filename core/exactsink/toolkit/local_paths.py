"""Local paths as a job's file gives them: one place has one name, whoever starts the job from wherever."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

__all__ = ["LocalPath", "absolute_path", "other_owner", "real_path"]

_DRIVE = re.compile(r"/?(?P<drive>[A-Za-z]):[\\/](?P<rest>.*)", re.DOTALL)
_FILE_URL = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>.*)", re.DOTALL | re.IGNORECASE)
_BARE_VARIABLE = re.compile(r"(?:^|/)\$(?P<name>[A-Za-z_]\w*)")


def absolute_path(path: str, context: Any = None) -> str:
    """Return a path with `~` expanded, and a relative one taken from the job file's folder.

    `file:/x` and `file:///x` are `/x`. `context` is what pydantic's validation was called with (`info.context`): its
    `folder` is the job file's; without it, paths are taken from the working folder. Raises ValueError, with what to
    write instead, for a user that nobody knows, another machine's `file:` URL, Windows' spellings, and `$NAME`.
    """
    written = _of_url(path)
    _check_spelling(written)
    try:
        place = Path(written).expanduser()
    except RuntimeError:
        raise ValueError(f"{path}: no such user") from None
    folder = context.get("folder") if isinstance(context, Mapping) else None
    absolute = os.path.abspath(Path(folder or ".") / place)
    return "/" + absolute.lstrip("/")  # a leading `//` would be kept


def real_path(path: str, context: Any = None) -> str:
    """Return the same with symbolic links resolved: two ways to one place are one name."""
    return os.path.realpath(absolute_path(path, context))


def _of_an_option(path: str, info: ValidationInfo) -> str:
    if not path:
        raise ValueError("give a path")
    return real_path(path, info.context)


LocalPath = Annotated[str, AfterValidator(_of_an_option)]
"""A local path among a backend's options: one place for driver and tasks, whatever folder each of them runs in.

A relative one is taken from the job file's folder."""


def other_owner(place: Path) -> str | None:
    """Return to root which other user has a file, or the folder where it would be made; as `sudo -u` takes the name."""
    stands = next(above for above in (place, *place.parents) if above.exists())
    if os.geteuid() != 0 or (owner := stands.stat().st_uid) == 0:
        return None
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:  # a container's user, seen from its host
        return f"'#{owner}'"


def _of_url(path: str) -> str:
    found = _FILE_URL.fullmatch(path)
    if found is None:
        return path
    if found["host"] not in (None, "", "localhost"):
        raise ValueError(f"file://{found['host']}/ names another machine: a local folder is a path, or file:///path")
    if not found["path"].startswith("/"):
        raise ValueError("a local folder is a path, or file:///path, the whole of it")
    return found["path"]


def _check_spelling(path: str) -> None:
    """Refuse what would make a folder of an odd name, where another one is meant."""
    drive = _DRIVE.fullmatch(path)
    if drive is not None:
        rest = drive["rest"].replace("\\", "/")
        raise ValueError(
            f"{path} is a path of Windows, on which exactsink does not run: write /path/to/it; in WSL that is "
            f"/mnt/{drive['drive'].lower()}/{rest}"
        )
    if path.startswith("\\\\"):
        raise ValueError(f"{path} is a share's name in Windows: mount it, and write the path to it, /mnt/share/path")
    if "\\" in path:
        raise ValueError(f"{path} has a backslash: write / between folders, {path.replace(chr(92), '/')}")
    if re.search(r"[\x00-\x1f]", path):
        raise ValueError("the path has a control character: in TOML a backslash begins one; write / between folders")
    bare = _BARE_VARIABLE.search(path)
    if bare is not None:
        name = bare["name"]
        raise ValueError(f"{path}: the environment's variables are written with braces, ${{{name}}}")
