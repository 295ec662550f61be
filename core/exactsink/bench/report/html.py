"""A report as one HTML page that needs nothing else: no script, no font, no image, no request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from xml.etree.ElementTree import Element, SubElement, tostring

from exactsink.bench.report.drawing import draw
from exactsink.bench.report.figures import figures, is_figure
from exactsink.bench.report.model import Cell, Chart, Report, Section, Table
from exactsink.bench.report.numbers import ABSENT, shown

__all__ = ["to_html"]

_MANY = 4
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def to_html(report: Report) -> str:
    """Return a report as a page. Elements are made as such and never pasted together, so all text is escaped."""
    page = Element("html", lang="en")
    head = SubElement(page, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", name="color-scheme", content="light dark")
    _text(head, "title", report.title)
    SubElement(head, "style").text = resources.files(__package__).joinpath("style.css").read_text("utf-8")
    body = SubElement(page, "body")
    _header(body, report)
    main = SubElement(body, "main")
    for number, section in enumerate(report.sections):
        _section(main, section, number)
    _footer(body, report)
    return "<!DOCTYPE html>\n" + _FORBIDDEN.sub("\ufffd", tostring(page, encoding="unicode", method="html")) + "\n"


def _header(body: Element, report: Report) -> None:
    header = SubElement(body, "header")
    _text(header, "h1", report.title)
    taken = _text(header, "p", "Taken ")
    _text(taken, "time", report.taken.isoformat(sep=" ", timespec="minutes"), datetime=report.taken.isoformat())
    if report.command:
        _text(SubElement(header, "pre", tabindex="0"), "code", report.command)
    if len(report.sections) > 1:
        items = SubElement(SubElement(header, "nav", {"aria-label": "Contents"}), "ul")
        for number, section in enumerate(report.sections):
            _text(SubElement(items, "li"), "a", section.title, href=f"#s{number}")


def _section(main: Element, section: Section, number: int) -> None:
    part = SubElement(main, "section", id=f"s{number}")
    _text(part, "h2", section.title)
    for paragraph in section.prose:
        _text(part, "p", paragraph)
    for place, chart in enumerate(section.charts):
        _chart(part, chart, f"c{number}-{place}")
    for table in section.tables:
        _table(part, table)


def _chart(part: Element, chart: Chart, id: str) -> None:
    figure = SubElement(part, "figure", {"aria-labelledby": id})
    caption = _text(figure, "figcaption", chart.title, id=id)
    if chart.better:
        _text(caption, "small", f" {chart.better} is better")
    draw(figure, chart, id)
    if chart.kind == "lines":  # bars have their figures beside them
        details = SubElement(figure, "details")
        _text(details, "summary", "The figures")
        _table(details, figures(chart))


def _table(part: Element, table: Table) -> None:
    """Make a table. One with many columns is a list of cards on a phone, so roles keep it a table to screen readers."""
    many = len(table.columns) > _MANY and any(isinstance(cell, str) for row in table.rows for cell in row[1:])
    scroll = SubElement(part, "div", {"class": "wide", "role": "region", "aria-label": table.caption, "tabindex": "0"})
    made = SubElement(scroll, "table", {"role": "table", **({"class": "many"} if many else {})})
    _text(made, "caption", table.caption)
    head = SubElement(SubElement(made, "thead", role="rowgroup"), "tr", role="row")
    columns = [(name, {"class": "n"} if is_figure(table, n) else {}) for n, name in enumerate(table.columns)]
    for name, style in columns:
        _text(head, "th", name, scope="col", role="columnheader", **style)
    body = SubElement(made, "tbody", role="rowgroup")
    for row in table.rows:
        line = SubElement(body, "tr", role="row")
        for place, (cell, (name, style)) in enumerate(zip(row, columns, strict=True)):
            if place:
                _cell(SubElement(line, "td", {"role": "cell", "data-column": name, **style}), cell)
            else:
                _cell(SubElement(line, "th", {"role": "rowheader", "scope": "row", **style}), cell)
    for note in table.notes:
        _text(part, "p", note, **{"class": "note"})


def _cell(place: Element, cell: Cell) -> None:
    """Show a figure shortened, and keep all of it in the page."""
    if isinstance(cell, str) or shown(cell) == ABSENT:
        place.text = shown(cell)
    else:
        _text(place, "data", shown(cell), value=repr(cell))


def _footer(body: Element, report: Report) -> None:
    footer = SubElement(body, "footer")
    _text(footer, "h2", "Where it was measured")
    for about in (report.machine, report.versions):
        _pairs(footer, about)


def _pairs(footer: Element, pairs: Mapping[str, Cell] | Mapping[str, str]) -> None:
    items: Iterable[tuple[str, Cell]] = pairs.items()
    made = SubElement(footer, "dl")
    for name, value in items:
        pair = SubElement(made, "div")
        _text(pair, "dt", name)
        _cell(SubElement(pair, "dd"), value)


def _text(parent: Element, tag: str, text: str, **attributes: str) -> Element:
    made = SubElement(parent, tag, attributes)
    made.text = text
    return made
