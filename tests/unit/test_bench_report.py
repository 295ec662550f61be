"""The report of measurements: its forms hold all of it and let nothing out, and its guide follows the figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.report_sample import SAMPLE

from exactsink.bench.measure import Measured, WayFigures
from exactsink.bench.pages import report_of
from exactsink.bench.report import page as pages
from exactsink.bench.report import stored as reports
from exactsink.bench.report.guide import Criterion, guide
from exactsink.bench.report.model import Grid, Report
from exactsink.bench.rows import Rows
from exactsink.bench.runs import MeasuredRun
from exactsink.bench.target import BenchTarget
from exactsink.bench.timeline import PHASES, TimedEpoch
from exactsink.bench.ways import Way
from exactsink.cli import bench as cli_bench
from exactsink.contract import ConfigError, Traits
from exactsink.job.config.model import SinkSection

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """A page's elements, text and figures; an element that is not closed in order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif value is not None:
        yield value


def test_a_page_is_well_formed_refers_to_nothing_outside_and_has_every_figure_and_word() -> None:
    text = pages.to_html(SAMPLE)
    page = Page(text)
    attributes = [(name, value or "") for _, attributes in page.elements for name, value in attributes.items()]
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "iframe", "img", "object", "base", "form"})
    assert [name for name, _ in attributes if name in ("src", "srcset") or name.startswith("on")] == []
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    referred = [v for n, value in attributes if n in ("href", "aria-labelledby") for v in value.split()]
    assert {value.removeprefix("#") for value in referred} <= set(ids)
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, which nobody requests
    assert set(re.findall(r"https?:[^\"' ]*", text)) <= namespaces
    assert not re.search(r"url\(|@import|<!--|\x00", text)
    figures = {float(value or "") for tag, a in page.elements if tag == "data" for value in [a["value"]]}
    values = list(leaves({**json.loads(reports.to_json(SAMPLE)), "taken": "2026-11-22T13:05:00+00:00"}))
    assert {value for value in values if not isinstance(value, str | bool)} <= figures
    shown = " ".join(" ".join(page.words).split()) + " ".join(value for _, value in attributes)
    fixed = {"more", "less", ""}
    assert [
        v for v in values if isinstance(v, str) and v not in fixed and v.replace("\x00", "\ufffd") not in shown
    ] == []


def test_json_is_read_again() -> None:
    text = reports.to_json(SAMPLE)
    assert reports.to_json(reports.from_json(text)) == text
    with pytest.raises(ValueError, match="sections"):
        reports.from_json(
            '{"title": "x", "taken": "2026-01-01T00:00:00Z", "machine": {}, "versions": {}, "sections": 1}'
        )


def test_a_report_is_saved_in_two_forms(tmp_path: Path) -> None:
    paths = reports.save(SAMPLE, tmp_path / "new")
    assert [path.name for path in paths] == ["report.html", "report.json"]
    assert reports.from_json(paths[1].read_bytes()).title == SAMPLE.title


def test_a_page_whose_libraries_are_missing_names_both_and_the_line_for_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _uninstall(monkeypatch, "jinja2", "pygal")
    with pytest.raises(ConfigError) as refused:
        reports.save(SAMPLE, tmp_path / "new")
    assert refused.value.why == "not installed: jinja2, pygal"
    assert refused.value.next == "pip install 'exactsink[bench]'"
    assert list(tmp_path.iterdir()) == []


def test_a_bench_that_could_not_write_its_page_is_refused_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    _uninstall(monkeypatch, "pygal")
    monkeypatch.setattr(cli_bench, "_measured", lambda *given: pytest.fail("measured"))
    with pytest.raises(ConfigError, match="the page of a bench can't be written"):
        cli_bench.bench(None, 1, 1, 1, "figures")


def _uninstall(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    for module in ("page", "charts"):
        monkeypatch.delitem(sys.modules, f"exactsink.bench.report.{module}", raising=False)


def test_drawing_leaves_no_finder_behind_that_other_imports_fail_on() -> None:
    assert [finder for finder in sys.meta_path if not hasattr(finder, "find_spec")] == []


def test_nobody_imports_the_pages_libraries_before_a_page_is_written() -> None:
    code = "import sys, exactsink.cli.bench; sys.exit(bool({'jinja2', 'pygal'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_guide_follows_the_figures() -> None:
    speed = Criterion("throughput", "rows/s", "more", {"a": [50.0, 52.0, 49.0], "b": [100.0, 90.0, 104.0], "d": []})
    small = Criterion("small epochs", "ms", "less", {"a": [5.0], "b": [20.0], "c": [7.0]})
    table = guide("pg", [speed, small, Criterion("alone", "s", "less", {"a": [1.0, 1.1], "b": []})])
    assert table.rows == [
        ["throughput", "rows/s", "b (100)", "a (50): 50 % less than the best"],
        ["small epochs", "ms", "a (5)", "c (7): 40 % more than the best; b (20): 4 times the best"],
    ]
    assert table.notes == [
        "small epochs: measured once, so a difference may be noise",
        "alone: fewer than two choices were measured",
    ]


def test_choices_whose_rounds_overlap_do_not_differ() -> None:
    """The medians lie 20 % apart, and a round of each lies within the other's."""
    figures = {"a": [80.0, 70.0, 95.0], "b": [100.0, 90.0, 110.0], "c": [60.0, 59.0, 61.0]}
    [row] = guide("pg", [Criterion("throughput", "rows/s", "more", figures)]).rows
    best, others = row[2:]
    assert best == "b (100), a (80): their rounds overlap: no difference was measured"
    assert others == "c (60): 40 % less than the best"


def test_only_ways_of_one_store_are_compared() -> None:
    ways = [_way("files", "parquet", 100), _way("files", "json", 200), _way("idempotent_upsert", "staged", 300)]
    report = report_of(Measured(Rows(Path(), 2, 10, "", "made"), ways, {}, {}), "exactsink bench")
    guides = [section for section in report.sections if section.title.startswith("Choose a way")]
    assert [section.title for section in guides] == ["Choose a way for files"]
    assert guides[0].tables[0].rows[0] == [
        "throughput", "rows/s", "files json (200)", "files parquet (100): 50 % less than the best",
    ]  # fmt: skip
    assert [[bar.label for bar in chart.bars] for chart in guides[0].charts] == [["files parquet", "files json"]] * 2
    advice = [chart.advice.partition(", choose ")[2].partition(":")[0] for chart in guides[0].charts]
    assert advice == ["files json (200).", "by the guarantee"]  # the rounds of CPU time overlap


def _way(kind: str, name: str, rate: float) -> WayFigures:
    """A way that writes so many rows a second, in three rounds alike."""
    target = cast(BenchTarget, SimpleNamespace(holds=""))
    way = Way(f"{kind} {name}", kind, target, SinkSection(backend=kind), {}, {})
    commits, phases = {"sink-0": (0.0, 0.1)}, dict.fromkeys(PHASES, 0.1)
    epochs = [
        TimedEpoch(n, n * 10 / rate, (n + 1) * 10 / rate, phases, commits, {"sink-0": 10}, n * 0.1) for n in (0, 1)
    ]
    run = MeasuredRun(epochs, 10)
    return WayFigures(way, Traits(), [run] * 3, None, run, [(0.1, 0.2)])


def test_values_that_no_form_could_show_are_refused() -> None:
    with pytest.raises(ValueError, match="2 columns"):
        Grid("t", ["a", "b"], [["only one"]])
    with pytest.raises(ValueError, match="time zone"):
        Report("r", datetime(2026, 1, 1), {}, {})


def test_colours_keep_their_contrast_in_both_schemes() -> None:
    style = resources.files("exactsink.bench.report").joinpath("style.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in style.split("@media screen and (prefers")[:2]
    )
    assert len(light) == len(dark) > 10
    for scheme in (light, dark):
        for name in ("ink", "soft", "accent"):
            assert min(contrast(scheme[name], scheme[ground]) for ground in ("page", "band")) >= 4.5, name
        for number in range(6):
            assert contrast(scheme[f"s{number}"], scheme["page"]) >= 4.5, number


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
