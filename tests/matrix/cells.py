"""What the matrix is made of: versions of Spark, Python and Java, where this machine has them, and what is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

OLDEST = "3.5.0"
SPARKS = (OLDEST, "3.5.*", "4.0.*", "4.1.*", "4.2.*", "4.3.*")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
JAVAS = ("17", "21", "25")
_WHOLE = dict(zip(SPARKS, ("3.11", "3.10", "3.11", "3.13", "3.12", "3.12"), strict=True))
"""The Python on which a Spark plays all parts, on Java 17; elsewhere only the first part is played."""
_NEWEST_JAVA = {OLDEST: 17, "3.5.*": 17, "4.0.*": 21, "4.1.*": 21}
"""Where a Spark does not run on all of them."""
DEMO = "examples/flights/demo.py"
PARTS: Mapping[str, tuple[str, ...]] = {
    "starter, counting": ("tests/e2e/test_starter.py",),
    "kills": ("tests/e2e/test_kills.py", "tests/e2e/test_stateful.py"),
    "cluster": ("tests/e2e/test_cluster.py",),
    "session": (
        "tests/e2e/test_one_pass.py",
        "tests/e2e/test_one_session.py",
        "tests/e2e/test_routes.py",
        "tests/e2e/test_batch_runs.py",
        "tests/e2e/test_arrow_settings.py",
    ),
    "text files": ("tests/e2e/test_text_files.py",),
    "stops": ("tests/e2e/test_stop.py",),
    "demo": (DEMO,),
}
"""Modules of tests, their long ones among them; or a script."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination: a requirement for pyspark, a minor version of Python, a major one of Java, and its parts."""

    spark: str
    python: str
    java: str
    parts: tuple[str, ...]


def cells(whole: bool = True) -> Iterator[Cell]:
    """Yield every combination; without `whole`, only those that play all, and as many others as show each version."""
    first = tuple(PARTS)[:1]
    for spark in SPARKS:
        yield Cell(spark, _WHOLE[spark], "17", tuple(PARTS))
        newer = (java for java in JAVAS if 17 < int(java) <= _NEWEST_JAVA.get(spark, 25))
        yield from (Cell(spark, _WHOLE[spark], java, first) for java in newer)
        if whole:
            yield from (Cell(spark, python, "17", first) for python in PYTHONS if python != _WHOLE[spark])


def pythons() -> Mapping[str, str]:
    """Find an interpreter of each version that can make environments: on PATH, or where pyenv keeps them."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    asks = "import sys, sqlite3, ssl, ensurepip; print('%d.%d' % sys.version_info[:2])"
    found = {}
    for version in PYTHONS:
        there = [shutil.which(f"python{version}"), *map(str, sorted(kept.glob(f"{version}.*/bin/python")))]
        usable = (path for path in there if path and _said([path, "-c", asks]).strip() == version)
        found[version] = next(usable, "")
    return {version: path for version, path in found.items() if path}


def javas() -> Mapping[str, str]:
    """Find the home of each Java: JAVA_HOME, the one on PATH, and Debian's folder of them."""
    found: dict[str, str] = {}
    for program in _java_programs():
        version = re.search(r'version "(\d+)', _said([str(program), "-version"]))
        if version is not None:
            found.setdefault(version[1], str(program.resolve().parents[1]))
    return found


def _java_programs() -> Iterable[Path]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    named = [Path(home, "bin/java")] if home else []
    named += [Path(on_path)] if on_path else []
    return [*named, *(path for path in sorted(Path("/usr/lib/jvm").glob("*/bin/java")) if path.exists())]


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout + done.stderr
