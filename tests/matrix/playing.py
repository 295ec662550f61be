"""A part of a matrix: tests, or a script, in a process of its own, and what came of it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.matrix.cells import ROOT

_LONGEST = 5400  # seconds that a part may take on a busy machine


def tests(python: Path | str, *chosen: str) -> list[str]:
    """Return the command that plays these tests; `chosen` are pytest's arguments."""
    return [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]


def played(part: str, command: list[str], settings: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run a command of `tests`, or a script; return how many tests passed and were skipped, and which failed."""
    report, log = folder / "report.xml", folder / "log"
    report.unlink(missing_ok=True)
    command = [*command, f"--junitxml={report}"] if "pytest" in command else command
    with open(log, "w") as out:
        code = subprocess.run(
            command,
            cwd=ROOT,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=_LONGEST,
            check=False,
        ).returncode
    result = counted(report) if report.exists() else {"passed": int(code == 0), "skipped": 0, "failed": []}
    if code != 0 and not result["failed"]:
        result["failed"] = [f"exit code {code}"]
    if result["failed"]:
        print(log.read_text(errors="replace")[-20_000:])
    print(f"  {part}: {result}", flush=True)
    return result


def counted(report: Path) -> dict[str, Any]:
    """Return what a report of pytest's says: how many tests passed and were skipped, and which failed."""
    tests = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [test.get("name") for test in tests if {child.tag for child in test} & {"failure", "error"}]
    skipped = sum(any(child.tag == "skipped" for child in test) for test in tests)
    return {"passed": len(tests) - len(failed) - skipped, "skipped": skipped, "failed": failed}
