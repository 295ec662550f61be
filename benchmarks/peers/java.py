"""The benchmarks' own Java code, compiled before it runs. A Java runtime has no compiler, so Maven brings one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.kafka_jars import java

__all__ = ["COMPILER", "compile_java"]

COMPILER = "org.eclipse.jdt:ecj:3.33.0"


def compile_java(sources: Path, path: str, classes: Path) -> None:
    """Compile a folder's files into another folder. The class path has the compiler, and their libraries."""
    command = [java(), "-cp", path, "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-nowarn", "-proc:none"]
    files = map(str, sorted(sources.glob("*.java")))
    done = subprocess.run([*command, "-d", str(classes), *files], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{sources.name} does not compile:\n{done.stderr}{done.stdout}")
