"""Programs from Debian's packages. The packages are only unpacked, so that no service starts."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path


def unpacked(*packages: str) -> Path:
    """Return a folder with these packages' files. They are fetched once, even if several processes come at once."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exactsink" / "-".join(packages)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f"{packages[0]}.new-", dir=folder.parent))
        wanted = ["apt-get", "-q", "download", *packages]
        if subprocess.run(wanted, cwd=new, capture_output=True).returncode != 0:
            subprocess.run(["apt-get", "-q", "update"], check=True, capture_output=True)
            subprocess.run(wanted, cwd=new, check=True, capture_output=True)
        for package in new.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(new)], check=True)
        with suppress(OSError):  # another was faster
            new.rename(folder)
    return folder
