"""The matrix leaves out nothing that it names, and a test that failed in a combination is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.matrix.cells import JAVAS, PARTS, PYTHONS, ROOT, SPARKS, cells
from tests.matrix.playing import counted
from tests.matrix.servers import RESULT, SERVERS, not_tested
from tests.servers.releases import ARTIFACTS


@pytest.mark.parametrize("whole", [True, False])
def test_each_version_is_played_and_each_spark_plays_all(whole: bool) -> None:
    made = list(cells(whole))
    assert {cell.python for cell in made} == set(PYTHONS)
    assert {cell.java for cell in made} == set(JAVAS)
    assert {cell.spark for cell in made if cell.parts == tuple(PARTS)} == set(SPARKS)
    assert len({(cell.spark, cell.python, cell.java) for cell in made}) == len(made)
    assert not whole or len({(cell.spark, cell.python) for cell in made}) == len(SPARKS) * len(PYTHONS)


def test_all_parts_are_there() -> None:
    of_servers = [part for server in SERVERS.values() for part in server.parts.values()]
    named = [word.partition("::")[0] for part in [*PARTS.values(), *of_servers] for word in part if ".py" in word]
    assert [path for path in named if not (ROOT / path).exists()] == []
    kits = [server.parts["kit"] for server in SERVERS.values()]
    assert [w for path, *k in kits for w in re.findall(r"[A-Z]\w+", str(k)) if w not in (ROOT / path).read_text()] == []


def test_each_release_can_be_had_and_the_page_of_versions_names_what_has_no_result() -> None:
    had = {release for server, release in ARTIFACTS if server in ("postgres", "mariadb")}
    assert {*SERVERS["PostgreSQL"].releases, *SERVERS["MariaDB"].releases} <= {"", *had}
    found, none = json.loads(RESULT.read_text()), not_tested([])
    assert found["not_played"] == not_tested(found["parts"])
    assert [name for name, of in SERVERS.items() if "job" not in of.parts and f"{name}: job" not in none] == []
    assert {f"{name} {release or '(installed)'}" for name, of in SERVERS.items() for release in of.releases} <= {*none}


def test_what_failed_is_counted_and_named(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    cases = ["", "<skipped/>", "<failure/>", "<error/>"]
    report.write_text(
        "<testsuites><testsuite>"
        + "".join(f'<testcase name="t{n}">{inner}</testcase>' for n, inner in enumerate(cases))
        + "</testsuite></testsuites>"
    )
    assert counted(report) == {"passed": 1, "skipped": 1, "failed": ["t2", "t3"]}
