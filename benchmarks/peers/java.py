"""Java of the benchmarks' own: compiled where it runs. A runtime of Java has no compiler, so one comes from Maven."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.kafka_jars import java

__all__ = ["COMPILER", "compile_java"]

COMPILER = "org.eclipse.jdt:ecj:3.33.0"


def compile_java(sources: Path, path: str, classes: Path) -> None:
    """Compile a folder's files into another one. The class path has the compiler, and what they need."""
    command = [java(), "-cp", path, "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-nowarn", "-proc:none"]
    files = map(str, sorted(sources.glob("*.java")))
    done = subprocess.run([*command, "-d", str(classes), *files], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{sources.name} does not compile:\n{done.stderr}{done.stdout}")
