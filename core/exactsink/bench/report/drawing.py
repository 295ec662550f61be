"""Charts as inline SVG. Places across are percentages, so that a drawing fits any width and its text keeps its size.

Markers' shapes and dashes set series apart, and colours besides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement

from exactsink.bench.report.model import Bar, Bars, Chart, Line, Lines
from exactsink.bench.report.numbers import shown, tick

__all__ = ["draw"]

_SERIES = 6  # colours in style.css
_MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z", "M0-5l5 9h-10z")
_DASHES = ("none", "8 3", "2 3", "8 3 2 3", "4 2")
_LEFT, _RIGHT = 13.0, 97.0  # per cent of the width
_TOP, _BOTTOM, _HEIGHT = 14, 246, 280  # pixels
_BAR_HEIGHT = 18


def draw(figure: Element, chart: Chart, id: str) -> None:
    """Draw a chart into a figure."""
    if isinstance(chart, Bars):
        _draw_bars(figure, chart)
    else:
        _draw_lines(figure, chart, id)


def _draw_bars(figure: Element, chart: Bars) -> None:
    """Draw a list: each bar's name and figure are text of the page, which wraps and is read aloud."""
    values = [v for bar in chart.bars for v in (bar.value, bar.high) if v is not None]
    reference = chart.reference
    most = max([*values, reference.value if reference else 0.0, 0.0]) or 1.0
    bars = SubElement(figure, "ul", {"class": "bars"})
    for bar in chart.bars:
        item = SubElement(bars, "li")
        SubElement(item, "span").text = bar.label
        text = SubElement(item, "span", {"class": "n"})
        if bar.value is None:
            text.text = "not measured"
            continue
        _figure(text, bar.value, f" {chart.unit}")
        if reference is not None and reference.value:
            SubElement(text, "small").text = f" = {shown(bar.value / reference.value)} of the line"
        _draw_bar(item, bar, bar.value, most, reference.value if reference else None)
        if bar.low is not None and bar.high is not None:
            spread = SubElement(item, "small", {"class": "spread"})
            spread.text = "rounds "
            _figure(spread, bar.low, " to ")
            _figure(spread, bar.high, "")
    if reference is not None:
        key = SubElement(figure, "p", {"class": "key"})
        key.text = "The line: "
        _figure(key, reference.value, f" {chart.unit}, {reference.label}")


def _draw_bar(item: Element, bar: Bar, value: float, most: float, reference: float | None) -> None:
    drawing = SubElement(item, "svg", {"height": str(_BAR_HEIGHT), "aria-hidden": "true"})
    across = [f"{max(0.0, number) / most * 99:.2f}%" for number in (value, bar.low or 0, bar.high or 0, reference or 0)]
    SubElement(drawing, "rect", {"class": "bar", "y": "3", "height": "12", "width": across[0]})
    if bar.low is not None and bar.high is not None:
        SubElement(drawing, "line", {"class": "range", "x1": across[1], "x2": across[2], "y1": "9", "y2": "9"})
    if reference is not None:
        ends = {"y1": "0", "y2": str(_BAR_HEIGHT)}
        SubElement(drawing, "line", {"class": "reference", "x1": across[3], "x2": across[3], **ends})


def _figure(parent: Element, value: float, after: str) -> None:
    data = SubElement(parent, "data", value=repr(value))
    data.text, data.tail = shown(value), after


def _draw_lines(figure: Element, chart: Lines, id: str) -> None:
    x = _Axis.around([x for line in chart.lines for x, _ in line.points], _LEFT, _RIGHT)
    y = _Axis.around([y for line in chart.lines for _, y in line.points], _BOTTOM, _TOP)
    label = {"role": "img", "aria-labelledby": f"{id}-title {id}-about"}
    drawing = SubElement(figure, "svg", {"class": "lines", "height": str(_HEIGHT), **label})
    SubElement(drawing, "title", id=f"{id}-title").text = chart.title
    SubElement(drawing, "desc", id=f"{id}-about").text = _about(chart)
    _draw_grid(drawing, x, y, chart)
    measured = 0
    key = SubElement(figure, "ul", {"class": "key"})
    for line in chart.lines:
        style = "expected" if line.expected else f"s{measured % _SERIES}"
        _draw_line(drawing, line, x, y, style, measured)
        item = SubElement(key, "li")
        sample = SubElement(item, "svg", {"width": "36", "height": "12", "aria-hidden": "true"})
        ends = ("0", "6", "36", "6")
        _stroke(sample, style, measured, ends)
        if not line.expected:
            _marker(sample, style, measured, "18", "6")
        SubElement(item, "span").text = f"{line.name} (expected)" if line.expected else line.name
        measured += not line.expected


def _about(chart: Lines) -> str:
    """Describe a chart to those who can't see it."""
    parts = [f"{chart.y} over {chart.x}, both axes logarithmic."]
    for line in chart.lines:
        (x, y), (last_x, last_y) = line.points[0], line.points[-1]
        kind = "expected " if line.expected else ""
        parts.append(f"{kind}{line.name}: {shown(y)} at {tick(x)}, {shown(last_y)} at {tick(last_x)}.")
    return " ".join(parts)


def _draw_grid(drawing: Element, x: _Axis, y: _Axis, chart: Lines) -> None:
    for value in y.ticks:
        place = f"{y.place(value):.1f}"
        SubElement(drawing, "line", {"class": "grid", "x1": f"{_LEFT}%", "x2": "100%", "y1": place, "y2": place})
        at = {"class": "tick end", "x": f"{_LEFT - 1.5}%", "y": f"{y.place(value) + 4:.1f}"}
        SubElement(drawing, "text", at).text = tick(value)
    for value in x.ticks:
        place = f"{x.place(value):.2f}%"
        ends = {"y1": str(_TOP), "y2": str(_BOTTOM)}
        SubElement(drawing, "line", {"class": "grid", "x1": place, "x2": place, **ends})
        SubElement(drawing, "text", {"class": "tick middle", "x": place, "y": str(_BOTTOM + 15)}).text = tick(value)
    SubElement(drawing, "text", {"class": "tick", "x": "0", "y": "9"}).text = chart.y
    SubElement(drawing, "text", {"class": "tick end", "x": "100%", "y": str(_HEIGHT - 4)}).text = chart.x


def _draw_line(drawing: Element, line: Line, x: _Axis, y: _Axis, style: str, number: int) -> None:
    places = [(f"{x.place(a):.2f}%", f"{y.place(b):.1f}") for a, b in sorted(line.points)]
    for (x1, y1), (x2, y2) in itertools.pairwise(places):
        _stroke(drawing, style, number, (x1, y1, x2, y2))
    if not line.expected:
        for at_x, at_y in places:
            _marker(drawing, style, number, at_x, at_y)


def _stroke(drawing: Element, style: str, number: int, ends: Sequence[str]) -> None:
    dashes = "5 5" if style == "expected" else _DASHES[number % len(_DASHES)]
    place = dict(zip(("x1", "y1", "x2", "y2"), ends, strict=True))
    SubElement(drawing, "line", {"class": f"stroke {style}", "stroke-dasharray": dashes, **place})


def _marker(drawing: Element, style: str, number: int, x: str, y: str) -> None:
    place = SubElement(drawing, "svg", {"x": x, "y": y, "overflow": "visible"})  # takes per cents where a path can't
    SubElement(place, "path", {"class": f"marker {style}", "d": _MARKERS[number % len(_MARKERS)]})


class _Axis:
    """A logarithmic axis: where a value is between two places."""

    __slots__ = ("_first", "_high", "_last", "_low", "ticks")

    def __init__(self, low: int, high: int, first: float, last: float) -> None:
        self._low, self._high, self._first, self._last = low, high, first, last
        step = max(1, math.ceil((high - low) / 8))
        self.ticks = [10.0**power for power in range(low, high + 1, step)]

    @classmethod
    def around(cls, values: Sequence[float], first: float, last: float) -> _Axis:
        """Make the axis from the power of ten below all values to the one above."""
        low = math.floor(math.log10(min(values)) + 1e-9)
        high = math.ceil(math.log10(max(values)) - 1e-9)
        return cls(low, max(high, low + 1), first, last)

    def place(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + part * (self._last - self._first)
