"""The reference pages are what the code says now, and the pages' links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from html import escape
from pathlib import Path
from types import ModuleType

import pytest

from exactsink.bench.report.stored import to_json
from exactsink.protocol.events import POINTS
from tests.docs.pages import ROOT, pages
from tests.unit.report_sample import SAMPLE

_LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#\s]+)(?P<anchor>#[^)]*)?\)")


def loaded(name: str) -> ModuleType:
    """Import a script of docs/."""
    spec = importlib.util.spec_from_file_location(f"exactsink_docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")  # as for a script
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return loaded("generate")


def test_the_reference_is_what_the_code_says(generate: ModuleType) -> None:
    assert generate.stale() == [], "run: python docs/generate.py"
    assert generate.backend_text("ledger", "staged") in (ROOT / "docs/how-to/write-a-plugin.md").read_text()


def test_a_page_that_was_edited_or_is_missing_is_stale(generate: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "reference", tmp_path, dirs_exist_ok=True)
    events = tmp_path / "events.md"
    events.write_text(events.read_text().replace("`sink`", "`sinks`", 1))
    (tmp_path / "errors.md").unlink()
    assert generate.stale(tmp_path) == ["errors.md", "events.md"]


def test_figures_of_a_page_are_those_that_were_measured(tmp_path: Path) -> None:
    """A ratio of times is turned round; a run too small for a page is refused; what was not measured is said."""
    measured = loaded("measured")
    machine = {"cores": 2, "memory_gib": 23.5, "kernel": "Linux 6.1 x86_64"}
    taken = {"command": "make it", "started": "2026-11-22T13:31:57+00:00", "machine": machine}
    figures = [
        {"metric": "rows_per_s", "of": "ours", "over": "Flink", "value": 0.5, "rounds": [0.4, 0.6]},
        {"metric": "trigger_ms", "of": "ours", "over": "Spark", "value": 0.8, "rounds": [0.5, 1.0]},
        {"metric": "rows_per_cpu_s", "of": "ours", "over": "Spark", "value": 0.8, "rounds": []},
        {"metric": "rows_per_s", "of": "Spark", "over": "Flink", "value": 2.0, "rounds": [2.0]},
    ]
    medians = {name: {"median": 10.0} for name in ("rows_per_s", "trigger_ms", "us_a_row")}
    line = {"benchmark": "kafka", "scale": 1.0, "rounds": 3, **taken, "figures": figures}
    line["variants"] = dict.fromkeys(("ours", "Flink", "Spark"), medians)
    (tmp_path / "peers.json").write_text(json.dumps({"lines": [line], "failed": {"sqlite": "no disk"}}))
    fault = {"tool": "Flink", "fault": "halted", "target": "topic", "rows": 9, "lost": 3, "doubled": 0, "differ": 0}
    (tmp_path / "peer_faults.json").write_text(
        json.dumps({"lines": [{**fault, "reported": "nothing"}], "failed": [], **taken})
    )
    (tmp_path / "bench.json").write_text(to_json(SAMPLE))
    blocks = [f"<!-- figures: {n} -->\nold\n<!-- end of figures -->\n" for n in (*measured.BLOCKS, "faults_short")]
    page = measured.with_figures("\n".join(blocks), tmp_path)
    assert page == measured.with_figures(page, tmp_path)
    assert page.count("Measured on 2026-11-22 by `") == 3
    assert "| kafka | Flink | 0.5 | behind | 0.4 to 0.6 | 10 rows/s | 10 rows/s | 10 | 10 |" in page
    assert "| kafka | Spark | 1.25 | undecided | 1 to 2 | 10 ms | 10 ms | 10 | 10 |" in page
    assert page.count("| kafka |") == 2
    assert "| kafka: Spark | Flink | 2 | ahead |" in page, "a line that is not ours says whose it is"
    assert "- not measured: sqlite, no disk" in page
    assert all(part in page for part in ("| Flink | halted | topic | 9 | 3 | 0 | 0 | nothing |", "tools in 1 of 1"))
    assert "old" not in page.replace("hold", "")
    assert "Not measured yet." in measured.with_figures(page, tmp_path / "none")
    (tmp_path / "peers.json").write_text(json.dumps({"lines": [{**line, "scale": 0.1}], "failed": {}}))
    with pytest.raises(ValueError, match="too small"):
        measured.with_figures(page, tmp_path)


def test_the_readmes_lines_are_lines_of_all_figures() -> None:
    """Same figures under a shorter head; a line that the measurement lacks is an error, not a gap."""
    measured = loaded("measured")
    found = json.loads((measured.FIGURES / "peers.json").read_text())
    short, whole = measured.short_block(found), measured.peers_block(found)
    rows = [
        row.split(" | ")
        for row in short.splitlines()
        if row.startswith("| ") and not row.startswith(("| job", "| ---"))
    ]
    assert len(rows) == 7
    assert [row for row in rows if f" | {row[5]} | {row[6].removesuffix(' |')} | " not in whole] == []
    found["lines"] = [line for line in found["lines"] if line["benchmark"] != "postgres"]
    with pytest.raises(ValueError, match="not enough values"):
        measured.short_block(found)


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages()])
def test_links_of_a_page_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    gone = [found["path"] for found in _LINK.finditer(text) if not ((ROOT / page).parent / found["path"]).exists()]
    assert gone == []


def test_rows_of_tables_are_whole() -> None:
    """A line break within a cell ends the table there, for every reader of Markdown."""
    lines = [(page.name, line) for page in pages() for line in page.read_text(encoding="utf-8").splitlines()]
    assert [(name, line) for name, line in lines if line.startswith("| ") and not line.endswith(" |")] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {found["path"] for found in _LINK.finditer(index)}
    known = {str(page.relative_to(ROOT / "docs")) for page in pages() if page.is_relative_to(ROOT / "docs")}
    assert known - linked == {"README.md"}


def test_anchors_of_links_stand_in_their_pages() -> None:
    """GitHub's rule, which the site follows: lower case, no punctuation, dashes for spaces."""

    def anchors(page: Path) -> set[str]:
        heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

    gone = []
    for page in pages():
        for found in _LINK.finditer(page.read_text(encoding="utf-8")):
            if found["anchor"] and found["anchor"][1:] not in anchors(page.parent / found["path"]):
                gone.append(f"{page.name}: {found['path']}{found['anchor']}")
    assert gone == []


def test_pictures_are_as_the_script_draws_them_and_have_every_point() -> None:
    draw = loaded("draw")
    assert {path.name: path.read_text() for path in draw.FOLDER.iterdir()} == {
        name: picture() for name, picture in draw.PICTURES.items()
    }, "run: python docs/draw.py"
    drawn = (draw.FOLDER / "epoch.svg").read_text()
    assert [point for point in POINTS if f">{escape(point)}</text>" not in drawn] == []
