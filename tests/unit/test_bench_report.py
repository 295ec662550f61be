"""The report of measurements: its forms hold all of it and let nothing out, and its guide follows the figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report_sample import SAMPLE

from exactsink.bench import report as reports
from exactsink.bench.report import Criterion, Line, Lines, Report, Table

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
    text = reports.to_html(SAMPLE)
    page = Page(text)
    attributes = [(name, value or "") for _, attributes in page.elements for name, value in attributes.items()]
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "iframe", "img", "object", "base", "form"})
    assert [name for name, _ in attributes if name in ("src", "style", "srcset") or name.startswith("on")] == []
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    referred = [v for n, value in attributes if n in ("href", "aria-labelledby") for v in value.split()]
    assert {value.removeprefix("#") for value in referred} <= set(ids)
    assert not re.search(r"url\(|@import|https?:|\x00", text)
    figures = {float(value or "") for tag, a in page.elements if tag == "data" for value in [a["value"]]}
    values = list(leaves({**json.loads(reports.to_json(SAMPLE)), "taken": "2026-11-22T13:05:00+00:00"}))
    assert {value for value in values if not isinstance(value, str | bool)} <= figures
    shown = " ".join(" ".join(page.words).split()) + " ".join(value for _, value in attributes)
    fixed = {"lines", "bars", "more", "less", ""}
    assert [
        v for v in values if isinstance(v, str) and v not in fixed and v.replace("\x00", "\ufffd") not in shown
    ] == []


def test_json_is_read_again_and_markdown_has_every_table_whole() -> None:
    text = reports.to_json(SAMPLE)
    assert reports.to_json(reports.from_json(text)) == text
    with pytest.raises(ValueError, match="sections"):
        reports.from_json(
            '{"title": "x", "taken": "2026-01-01T00:00:00Z", "machine": {}, "versions": {}, "sections": 1}'
        )
    page = reports.to_markdown(SAMPLE)
    tables = [block.splitlines() for block in page.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 4
    for lines in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "<" not in re.sub(r"(?m)\\<|^    .*$", "", page)  # a command is an indented block: as it is


def test_a_report_is_saved_in_three_forms(tmp_path: Path) -> None:
    paths = reports.save(SAMPLE, tmp_path / "new")
    assert [path.name for path in paths] == ["report.html", "report.md", "report.json"]
    assert reports.from_json(paths[2].read_bytes()).title == SAMPLE.title


def test_the_guide_follows_the_figures() -> None:
    speed = Criterion("throughput", "rows/s", "more", {"a": 50.0, "b": 100.0, "c": 95.0, "d": None})
    small = Criterion("small epochs", "ms", "less", {"a": 5.0, "b": 20.0})
    section = reports.guide([speed, small, Criterion("alone", "s", "less", {"a": 1.0, "b": float("nan")})])
    [table] = section.tables
    assert table.rows == [
        ["throughput", "rows/s", "b (100), c (95)", "a (50)", "a: 0.5"],
        ["small epochs", "ms", "a (5)", "b (20)", "b: 4"],
    ]
    assert section.prose[0] == "throughput: b (100), c (95) rows/s; next is a (50)."
    assert table.notes == ["alone: fewer than two choices were measured"]
    [equal] = reports.guide([Criterion("equal", "s", "less", {"a": 1.0, "b": 1.05})]).prose
    assert equal == "equal: a (1), b (1.05) s; all are within 10% of each other."


def test_values_that_no_form_could_show_are_refused() -> None:
    with pytest.raises(ValueError, match="2 columns"):
        Table("t", ["a", "b"], [["only one"]])
    with pytest.raises(ValueError, match="above zero"):
        Lines("c", "x", "y", [Line("l", [(1, 0)])])
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
