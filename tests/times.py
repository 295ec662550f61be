"""What tests take: sums by folder beside budgets, printed by every run, and CONTRIBUTING's figures out of a run's file.

`python -m tests.times COMMAND [FILE]` prints the sums of a run that is kept, the newest one's by itself, and takes its
figures into the page as those of `make COMMAND`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
RUNS = ROOT / "build/tests"
"""Where `make test` and `make proof` keep a junit file a run, named by its time; git ignores it."""
BUDGETS = {
    "unit": 240,
    "simulation": 120,
    "differential": 30,
    "conformance": 330,
    "plugins": 120,
    "integration": 80,
    "integration/clouds": 30,
    "integration/delta": 20,
    "integration/files_s3": 40,
    "integration/iceberg": 70,
    "integration/kafka": 260,
    "integration/postgres": 230,
    "integration/s3": 50,
    "integration/upserts": 150,
    "docs": 150,
    "e2e": 540,
    "matrix": 60,
    "contract": 30,
    "soak": 60,
}
"""Seconds of `make test`, added up over a folder's tests: four workers have 2,400 in ten minutes."""
# Iceberg and Delta may add 90 in all: the last whole run of 2026-11-27 measured 66 and 11


def sums(tests: Iterable[tuple[str, float]]) -> list[str]:
    """Return a table: how many tests each folder has, and how long they took by its budget."""
    count, seconds = Counter[str](), Counter[str]()
    for path, took in tests:
        _, *folders, _ = path.split("/")
        name = "/".join(folders[: 2 if folders[0] == "integration" else 1])
        count[name] += 1
        seconds[name] += took
    said = [f"{'folder':22}{'tests':>7}{'seconds':>9}{'budget':>8}"]
    for name, took in [*seconds.most_common(), ("all", seconds.total())]:
        budget = BUDGETS.get(name, 0) if name != "all" else sum(BUDGETS.values())
        over = f"  over by {took - budget:,.0f} s" if budget and took > budget else ""
        said.append(f"{name:22}{count[name] or count.total():7,}{took:9,.0f}{budget or '-':>8}{over}")
    return said


def with_figures(page: str, command: str, run: ElementTree.Element) -> str:
    """Return the page with a run's minutes and passed tests in the line of this command."""
    figure = {name: float(run.attrib[name]) for name in ("time", "tests", "skipped", "failures", "errors")}
    passed = figure["tests"] - figure["skipped"] - figure["failures"] - figure["errors"]
    shown = rf"\g<1>{figure['time'] / 60:.0f} minutes on two cores ({passed:,.0f} tests)"
    line = rf"(^- `make {command}`.*?)\d+ minutes on two cores \([\d,]+ tests\)"
    return re.sub(line, shown, page, count=1, flags=re.MULTILINE)


def main(command: str, file: str = "") -> None:
    [run] = ElementTree.parse(file or max(RUNS.glob("*.xml"))).getroot()
    print(*sums((case.attrib["file"], float(case.attrib["time"])) for case in run.iter("testcase")), sep="\n")
    PAGE.write_text(with_figures(PAGE.read_text(), command, run))


if __name__ == "__main__":
    main(*sys.argv[1:])
