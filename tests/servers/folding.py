"""A file system that ignores case: NTFS, mounted by ntfs-3g with `ignore_case`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.packages import unpacked


@contextmanager
def folding(folder: Path) -> Iterator[Path]:
    """Mount one below a folder until the end. Only root can, on a machine with FUSE."""
    if os.getuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("mounting needs root and /dev/fuse")
    programs, image, root = unpacked("ntfs-3g", "libntfs-3g89"), folder / "image", folder / "mounted"
    [library] = programs.glob("**/libntfs-3g.so.*.*")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    root.mkdir()
    with open(image, "wb") as new:
        new.truncate(32 * 2**20)
    made = [programs / "sbin/mkntfs", "--fast", "--force", "--quiet", image]
    subprocess.run(made, env=environment, check=True, capture_output=True)
    subprocess.run([programs / "bin/lowntfs-3g", image, root, "-o", "ignore_case"], env=environment, check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=True)
