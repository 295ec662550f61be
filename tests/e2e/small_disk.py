"""A file system of a few megabytes, which only the processes that enter it see, and which ends with them.

It is a tmpfs in a mount namespace: as root, or, where the kernel lets everybody have one, in a user namespace too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.processes import ROOT, Process

_ROOT_USER = os.geteuid() == 0
_UNSHARE = ["unshare", "--mount", *([] if _ROOT_USER else ["--map-root-user"])]


class SmallDisk:
    """Mount one at `place`. `within` before a command runs it where the disk is seen."""

    def __init__(self, place: Path, megabytes: int, log: Path) -> None:
        self.place = place
        place.mkdir()
        script = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && echo mounted && exec cat'
        self._holder = Process([*_UNSHARE, "sh", "-c", script, str(place)], log)
        try:
            self._holder.until(lambda: "mounted" in self._holder.reported, "a mounted disk")
        except BaseException:
            self._holder.end()
            raise

    @staticmethod
    def is_possible() -> bool:
        """Return whether this user may mount one at all."""
        tried = [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]  # in a namespace of its own, gone at once
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0

    @property
    def within(self) -> Sequence[str]:
        user = [] if _ROOT_USER else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self._holder.pid}", "--mount", *user, "env", f"--chdir={ROOT}"]

    @property
    def seen(self) -> Path:
        """The disk's folder as these tests see it, from outside."""
        return Path("/proc", str(self._holder.pid), "root", *self.place.absolute().parts[1:])

    def close(self) -> None:
        self._holder.end()
