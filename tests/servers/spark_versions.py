"""Other versions of Spark than this environment's: an interpreter for each, with all other packages from here."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from exactsink.spark.versions import OLDEST, OLDEST_OF_PYTHON_3_12

_FETCHED_WITHIN = 580  # seconds: below pytest's own time limit


def python_with_spark(version: str, *more: str) -> Path:
    """Return an interpreter with this pyspark and `more` packages, before all packages of this process's environment.

    Spark is fetched once per machine (400 MB), and kept outside the tree; the interpreter is made for each
    environment. If several processes come at the same time, one fetches, and the others wait.
    """
    wanted = (f"pyspark=={version}", *more)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exactsink"
    runs = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"spark-{version}-py{runs}{_short(*more) if more else ''}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(wanted, folder)
        interpreter = folder / f"for{_short(sys.prefix)}"
        if not interpreter.exists():
            _make(interpreter, folder / "packages")
    return interpreter / "bin" / "python"


def oldest_spark() -> str:
    """Return the oldest release that this Python runs."""
    major, minor = OLDEST_OF_PYTHON_3_12 if sys.version_info >= (3, 12) else OLDEST
    return f"{major}.{minor}.0"


def spark_home(python: Path) -> Path:
    """Return the SPARK_HOME of such an interpreter's Spark."""
    return python.parents[2] / "packages" / "pyspark"


def _short(*texts: str) -> str:
    return "-" + hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]


def _fetch(wanted: tuple[str, ...], folder: Path) -> None:
    """Install into the folder, which is complete or missing."""
    for left in folder.parent.glob(f"{folder.name}.new-*"):  # a killed process left it: this process has the lock
        shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(new / "packages"), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCHED_WITHIN, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip could not fetch {', '.join(wanted)}:\n{done.stderr[-3000:]}")
    new.rename(folder)


def _make(place: Path, packages: Path) -> None:
    """Make an interpreter that finds these packages first, and then the packages of this process's environment."""
    new = place.with_name(f"{place.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    venv.create(new, symlinks=True)
    [site] = new.glob("lib/python*/site-packages")
    here = sysconfig.get_paths()["purelib"]
    lines = (str(packages), f"import site; site.addsitedir({here!r})")
    (site / "spark.pth").write_text("".join(f"{line}\n" for line in lines))
    new.rename(place)
