"""The jars of Apache Kafka for tests: fetched once per version by Maven, and kept outside the tree.

EXACTSINK_TESTS_KAFKA in the environment is the brokers' version for a whole run (say 4.0.0). The tools' version stays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

TOOLS_VERSION = "4.3.1"
VERSION = os.environ.get("EXACTSINK_TESTS_KAFKA") or TOOLS_VERSION
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
INSTALL = "apt-get update && apt-get install -y --no-install-recommends maven"
FETCHED_WITHIN = 400  # seconds: below pytest's own time limit
_LOGS = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Artifacts (group:artifact:version[:classifier]) in a folder, with their dependencies, or `alone`."""

    name: str
    artifacts: tuple[str, ...]
    alone: bool = False


def _broker(version: str) -> JarSet:
    return JarSet(f"kafka-{version}", (f"org.apache.kafka:kafka_2.13:{version}", _LOGS))


BROKER, OLDEST, OLDER = _broker(VERSION), _broker("4.0.0"), _broker("3.9.1")
TOOLS = JarSet(f"kafka-tools-{TOOLS_VERSION}", (f"org.apache.kafka:kafka-tools:{TOOLS_VERSION}", _LOGS))


def java() -> str:
    """Find the java for brokers."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise RuntimeError("these tests need Java 17 or newer; run: make setup")
    return found


def jars(wanted: JarSet = BROKER) -> Path:
    """Return the folder with the jars. If it is missing, fetch them: 44 MB, once per machine and version.

    The folder is complete or missing. If several processes need it at the same time, one fetches, and the others wait.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exactsink"
    folder = cache / wanted.name
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{wanted.name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fill(wanted, folder)
    return folder


def _fill(wanted: JarSet, folder: Path) -> None:
    for left in folder.parent.glob(f"{wanted.name}.new-*"):  # a killed process left it: this process has the lock
        shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(prefix=f"{wanted.name}.new-", dir=folder.parent))
    try:
        _fetch(wanted, new)
        (new / "pom.xml").unlink(missing_ok=True)
        names = [artifact.split(":") for artifact in wanted.artifacts]
        wanted_jars = [new / f"{'-'.join(parts)}.jar" for _, *parts in names]
        bad = sorted(jar.name for jar in {*wanted_jars, *new.glob("*.jar")} if not zipfile.is_zipfile(jar))
        if bad:
            raise RuntimeError(f"fetching {wanted.name} left no whole set: {bad} missing or broken; try again")
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _fetch(wanted: JarSet, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(f"tests with Kafka need Maven to fetch {', '.join(wanted.artifacts)}; run: {INSTALL}")
    (folder / "pom.xml").write_text(_pom(wanted))
    command = [maven, "-B", "-q", "-C", PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            timeout=FETCHED_WITHIN,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"Maven did not fetch {wanted.name} in {FETCHED_WITHIN} s; run the tests again") from late
    if done.returncode != 0:
        raise RuntimeError(
            f"Maven could not fetch {', '.join(wanted.artifacts)} into {folder.parent / wanted.name}:\n"
            f"{done.stdout[-3000:]}\ncheck the network and Maven's settings, then run the tests again"
        )


def _pom(wanted: JarSet) -> str:
    rest = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    parts = ("groupId", "artifactId", "version", "classifier")
    named = [zip(parts, artifact.split(":"), strict=False) for artifact in wanted.artifacts]
    texts = ["".join(f"<{part}>{text}</{part}>" for part, text in each) for each in named]
    entries = "".join(f"<dependency>{text}{rest if wanted.alone else ''}</dependency>" for text in texts)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>exactsink.tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{entries}</dependencies></project>\n"
    )
