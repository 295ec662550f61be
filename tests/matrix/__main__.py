"""Play exactsink on every version of Spark, Python and Java that this machine has, and keep what came of it.

`docs/figures/matrix.json` has the last result of each combination; `docs/generate.py` makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.matrix.cells import DEMO, PARTS, ROOT, SPARKS, Cell, cells, javas, pythons
from tests.matrix.environments import Refused, built_wheel, environment, facts
from tests.matrix.playing import played, tests

RESULT = ROOT / "docs" / "figures" / "matrix.json"


def main() -> int:
    """Play the combinations that are asked for; end with 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--diagonal", action="store_true", help="each Spark, Python and Java once, not every pair")
    parser.add_argument("--spark", action="append", choices=SPARKS, help="only this one; again for another")
    parser.add_argument("--python", action="append", help="only this one, as 3.11")
    parser.add_argument("--java", action="append", help="only this one, as 17")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part")
    given = parser.parse_args()
    chosen = [
        Cell(cell.spark, cell.python, cell.java, tuple(p for p in cell.parts if p in (given.part or PARTS)))
        for cell in cells(whole=not given.diagonal)
        if cell.spark in (given.spark or (cell.spark,))
        and cell.python in (given.python or (cell.python,))
        and cell.java in (given.java or (cell.java,))
    ]
    failed = False
    with tempfile.TemporaryDirectory(prefix="exactsink-matrix-") as folder:
        wheel = built_wheel(Path(folder))
        for cell in (cell for cell in chosen if cell.parts):
            print(f"Spark {cell.spark}, Python {cell.python}, Java {cell.java}: {', '.join(cell.parts)}", flush=True)
            found = _played(cell, wheel, Path(folder))
            failed = failed or any(part["failed"] for part in found.get("parts", {}).values())
            _keep(cell, found)
    return int(failed)


def _played(cell: Cell, wheel: Path, folder: Path) -> dict[str, Any]:
    """Return what came of a cell: its parts, or why it was not played."""
    python, java = pythons().get(cell.python), javas().get(cell.java)
    if python is None or java is None:
        missing = f"no Python {cell.python}" if python is None else f"no Java {cell.java}"
        return _said({"skipped": f"{missing} on this machine"})
    try:
        with environment(cell, python, wheel) as made:
            settings = _environment(java)
            parts = {part: _play(part, made, settings, folder) for part in cell.parts}
            return {"versions": {**facts(made), "java": cell.java}, "parts": parts}
    except Refused as refused:
        return _said({"refused": str(refused)})


def _said(why: dict[str, Any]) -> dict[str, Any]:
    print(f"  {why}", flush=True)
    return why


def _environment(java: str) -> Mapping[str, str]:
    """Return this process's environment with another Java, and without what belongs to this Python and Spark."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, "JAVA_HOME": java, "PATH": f"{java}/bin{os.pathsep}{os.environ['PATH']}"}


def _play(part: str, python: Path, settings: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run a part in an environment; return how many tests passed and were skipped, and which failed."""
    place = tempfile.mkdtemp(dir=folder)
    command = [str(python), DEMO] if PARTS[part] == (DEMO,) else tests(python, *PARTS[part])
    result = played(part, command, {**settings, "FLIGHTS": f"{place}/flights"}, folder)
    shutil.rmtree(place, ignore_errors=True)
    return result


def _keep(cell: Cell, found: dict[str, Any]) -> None:
    """Put a cell's result in the place of its last one; parts that were not played keep theirs."""
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {"cells": []}
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    new = {"spark": cell.spark, "python": cell.python, "java": cell.java, "at": at, **found}
    others = []
    for old in kept["cells"]:
        if (old["spark"], old["python"], old["java"]) != (cell.spark, cell.python, cell.java):
            others.append(old)
        elif "parts" in new and old.get("versions") == new["versions"]:
            kept_parts = {part: {"at": old["at"], **came} for part, came in old["parts"].items()}
            new["parts"] = {**kept_parts, **new["parts"]}
    ordered = sorted([*others, new], key=_order)
    RESULT.write_text(json.dumps({"cells": ordered}, indent=1) + "\n")


def _order(cell: Mapping[str, str]) -> tuple[int, ...]:
    return SPARKS.index(cell["spark"]), int(cell["java"]), *map(int, cell["python"].split("."))


if __name__ == "__main__":
    sys.exit(main())
