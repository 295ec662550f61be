"""Local paths in a job's file: a folder has the same path, whoever starts the job and from any working folder."""

from __future__ import annotations

import errno
import os
import pwd
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from exactsink.contract import Finding

__all__ = ["LocalPath", "absolute_path", "full_disk", "other_owner", "real_path", "write_probe"]

_PROBE = b"\0" * 4096

_DRIVE = re.compile(r"/?(?P<drive>[A-Za-z]):[\\/](?P<rest>.*)", re.DOTALL)
_FILE_URL = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>.*)", re.DOTALL | re.IGNORECASE)
_BARE_VARIABLE = re.compile(r"(?:^|/)\$(?P<name>[A-Za-z_]\w*)")


def absolute_path(path: str, context: Any = None) -> str:
    """Expand `~` in a path, and resolve a relative path against the folder of the job's file.

    `file:/x` and `file:///x` become `/x`. `context` is that of pydantic's validation (`info.context`): its `folder` is
    the job file's; without a context, paths are relative to the working folder. Raises ValueError, with the correct
    spelling, for an unknown user, a `file:` URL of another machine, a path of Windows, or `$NAME`.
    """
    written = _of_url(path)
    _check_spelling(written)
    try:
        place = Path(written).expanduser()
    except RuntimeError:
        raise ValueError(f"{path}: no such user") from None
    folder = context.get("folder") if isinstance(context, Mapping) else None
    absolute = os.path.abspath(Path(folder or ".") / place)
    return "/" + absolute.lstrip("/")  # without it, a leading `//` would stay


def real_path(path: str, context: Any = None) -> str:
    """Return the absolute path with symbolic links resolved, so that two paths to one folder become equal."""
    return os.path.realpath(absolute_path(path, context))


def _of_an_option(path: str, info: ValidationInfo) -> str:
    if not path:
        raise ValueError("give a path")
    return real_path(path, info.context)


LocalPath = Annotated[str, AfterValidator(_of_an_option)]
"""A local path in a backend's options: the same folder for driver and tasks, whatever their working folders are.

A relative path is resolved against the folder of the job's file.
"""


def other_owner(place: Path) -> str | None:
    """Return the other user who owns a file, or the folder for a new one, if root runs this. For `sudo -u`."""
    stands = next(above for above in (place, *place.parents) if above.exists())
    if os.geteuid() != 0 or (owner := stands.stat().st_uid) == 0:
        return None
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:  # the user of a container, seen from its host
        return f"'#{owner}'"


def write_probe(folder: Path) -> None:
    """Write a small file to the folder's disk, and leave nothing. Raises the OSError of a disk that takes no file."""
    with tempfile.TemporaryFile(dir=folder, prefix="exactsink-probe-") as probe:
        probe.write(_PROBE)
        probe.flush()
        os.fsync(probe.fileno())


def full_disk(folder: Path) -> Finding | None:
    """Find a disk without space, or a used-up quota, by writing to a folder. Other errors are left to other checks.

    It is a warning, because a start may free space: it drops the rows that it commits or aborts.
    """
    try:
        write_probe(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"a new file in {folder} is refused: {error.strerror}"
            return Finding("warning", message, "free space there, or raise the quota of the driver's user")
    return None


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
    """Refuse a spelling that would create a folder with a strange name, although another folder is meant."""
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
