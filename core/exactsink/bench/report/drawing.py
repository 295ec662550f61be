"""Charts as inline SVG. Places across are percentages, so that a drawing fits any width and its text keeps its size.

Markers' shapes and dashes set series apart, and colours besides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

from exactsink.bench.report.model import Bar, Bars, Chart, Line, Lines
from exactsink.bench.report.numbers import shown, tick

__all__ = ["draw"]

_SERIES = 6  # colours in style.css
_MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z", "M0-5l5 9h-10z")
_DASHES = ("none", "8 3", "2 3", "8 3 2 3", "4 2")
_EXPECTED = ("5 5", "1 4")
_LEFT, _RIGHT = 13.0, 97.0  # per cent of the width
_TOP, _BOTTOM, _HEIGHT = 26, 256, 296  # pixels
_BAR_HEIGHT = 20


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
    SubElement(drawing, "rect", {"class": "bar", "y": "3", "height": "11", "width": across[0]})
    if bar.low is not None and bar.high is not None:
        SubElement(drawing, "line", {"class": "range", "x1": across[1], "x2": across[2], "y1": "17", "y2": "17"})
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
    seen = {True: 0, False: 0}
    key = SubElement(figure, "ul", {"class": "key"})
    for line in chart.lines:
        style = _Style(line.expected, seen[line.expected])
        seen[line.expected] += 1
        _draw_line(drawing, line, x, y, style)
        item = SubElement(key, "li")
        sample = SubElement(item, "svg", {"width": "36", "height": "12", "aria-hidden": "true"})
        style.stroke(sample, ("0", "6", "36", "6"))
        style.marker(sample, "18", "6")
        SubElement(item, "span").text = line.name


def _about(chart: Lines) -> str:
    """Describe a chart to those who can't see it."""
    parts = [f"{chart.y} over {chart.x}, both axes logarithmic."]
    for line in chart.lines:
        (x, y), (last_x, last_y) = line.points[0], line.points[-1]
        parts.append(f"{line.name}: {shown(y)} at {tick(x)}, {shown(last_y)} at {tick(last_x)}.")
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
        SubElement(drawing, "text", {"class": "tick middle", "x": place, "y": str(_BOTTOM + 20)}).text = tick(value)
    SubElement(drawing, "text", {"class": "tick", "x": "0", "y": "9"}).text = chart.y
    SubElement(drawing, "text", {"class": "tick end", "x": "100%", "y": str(_HEIGHT - 4)}).text = chart.x


def _draw_line(drawing: Element, line: Line, x: _Axis, y: _Axis, style: _Style) -> None:
    places = [(f"{x.place(a):.2f}%", f"{y.place(b):.1f}") for a, b in sorted(line.points)]
    for start, end in itertools.pairwise(places):
        style.stroke(drawing, (*start, *end))
    for at_x, at_y in places:
        style.marker(drawing, at_x, at_y)


@dataclass(frozen=True, slots=True)
class _Style:
    """How a line looks: the number of its kind. Expected ones have no markers."""

    expected: bool
    number: int

    def stroke(self, drawing: Element, ends: Sequence[str]) -> None:
        dashes = _EXPECTED if self.expected else _DASHES
        place = dict(zip(("x1", "y1", "x2", "y2"), ends, strict=True))
        dash = dashes[self.number % len(dashes)]
        SubElement(drawing, "line", {"class": f"stroke {self._colour}", "stroke-dasharray": dash, **place})

    def marker(self, drawing: Element, x: str, y: str) -> None:
        if not self.expected:
            place = SubElement(drawing, "svg", {"x": x, "y": y, "overflow": "visible"})  # a path takes no per cents
            shape = _MARKERS[self.number % len(_MARKERS)]
            SubElement(place, "path", {"class": f"marker {self._colour}", "d": shape})

    @property
    def _colour(self) -> str:
        return "expected" if self.expected else f"s{self.number % _SERIES}"


class _Axis:
    """A logarithmic axis: where a value is between two places."""

    __slots__ = ("_first", "_high", "_last", "_low", "ticks")

    def __init__(self, low: int, high: int, first: float, last: float) -> None:
        self._low, self._high, self._first, self._last = low, high, first, last
        step = max(1, math.ceil((high - low) / 8))
        digits = (1, 2, 5) if high - low <= 2 else (1,)
        ticks = [digit * 10.0**power for power in range(low, high + 1, step) for digit in digits]
        self.ticks = [value for value in ticks if value <= 10.0**high]

    @classmethod
    def around(cls, values: Sequence[float], first: float, last: float) -> _Axis:
        """Make the axis from the power of ten below all values to the one above."""
        low = math.floor(math.log10(min(values)) + 1e-9)
        high = math.ceil(math.log10(max(values)) - 1e-9)
        return cls(low, max(high, low + 1), first, last)

    def place(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + part * (self._last - self._first)
