"""Charts as SVG, drawn by pygal in the colours of the page around them. Imported only when a page is written."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import pygal
from markupsafe import Markup
from pygal.etree import etree
from pygal.style import Style

from exactsink.bench.report.model import Bars, Chart, Lines
from exactsink.bench.report.numbers import printable, shown, tick

__all__ = ["drawn"]

# pygal adds a finder for maps that has no `find_spec`, and whoever asks every finder fails on it.
sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]

_COLOURS = tuple(f"var(--s{number})" for number in range(6))  # of style.css
_EXPECTED = "var(--soft)"
_LONGEST_LABEL = 34
_FORM = {
    "background": "transparent", "plot_background": "transparent", "foreground": "var(--ink)",
    "foreground_strong": "var(--ink)", "foreground_subtle": "var(--soft)", "ci_colors": ("var(--ink)",),
    "guide_stroke_color": "var(--rule)", "major_guide_stroke_color": "var(--rule)", "guide_stroke_dasharray": "none",
    "major_guide_stroke_dasharray": "none", "font_family": "system-ui, sans-serif", "opacity": "1",
    "stroke_opacity": "1", "label_font_size": 13, "major_label_font_size": 13, "legend_font_size": 13,
    "title_font_size": 13, "transition": "0s",
}  # fmt: skip


def drawn(chart: Chart, id: str) -> Markup:
    """Return a chart as an element of a page, without scripts; `id` is no other chart's of the page."""
    made = _bars(chart) if isinstance(chart, Bars) else _lines(chart)
    made.uuid = id
    root = made.render_tree()
    for parent in list(root.iter()):
        parent.attrib.pop("id", None)
        for child in [one for one in parent if not isinstance(one.tag, str) or one.tag.rpartition("}")[2] == "script"]:
            parent.remove(child)
    root.attrib.update({"id": f"chart-{id}", "role": "img", "aria-labelledby": id})
    return Markup(etree.tostring(root, encoding="unicode"))  # pygal has escaped every text


def _form(colours: Sequence[str], height: int, **more: Any) -> dict[str, Any]:
    style = Style(**_FORM, colors=tuple(colours))
    fixed = {"js": (), "width": 860, "height": height, "margin": 8, "margin_right": 24, "truncate_label": -1}
    return {**fixed, "style": style, "legend_at_bottom": True, "legend_at_bottom_columns": 1, **more}


def _bars(chart: Bars) -> pygal.HorizontalBar:
    made = pygal.HorizontalBar(**_form(_COLOURS, 60 + 36 * len(chart.bars), show_legend=False, value_formatter=tick))
    made.range = (0, max(bar.high for bar in chart.bars))
    made.x_labels = [f"{_label(bar.label)}: {shown(bar.value)}" for bar in reversed(chart.bars)]
    made.add("", [{"value": b.value, "ci": {"low": b.low, "high": b.high}} for b in reversed(chart.bars)])
    return made


def _lines(chart: Lines) -> pygal.XY:
    ordered = sorted(chart.lines, key=lambda line: line.expected)
    colours = [_EXPECTED if line.expected else _COLOURS[n % len(_COLOURS)] for n, line in enumerate(ordered)]
    form = _form(colours, 360 + 22 * len(chart.lines), logarithmic=True, truncate_legend=-1, dots_size=4)
    made = pygal.XY(**form, value_formatter=tick)
    made.x_value_formatter = tick
    across, up = (_powers([point[side] for line in chart.lines for point in line.points]) for side in (0, 1))
    made.x_labels, made.y_labels = across, up[1:]  # the first would meet that of the other axis
    made.xrange, made.range = (across[0], across[-1]), (up[0], up[-1])
    for line in ordered:
        stroke = {"width": 2, "dasharray": "5,5" if line.expected else "none"}
        made.add(_label(line.name), sorted(line.points), stroke_style=stroke, show_dots=not line.expected)
    return made


def _label(text: str) -> str:
    """Cut a text that would leave no room for the drawing; the table below a chart has all of it."""
    return printable(text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "\u2026")


def _powers(values: Sequence[float]) -> list[float]:
    """Return powers of ten from below all values to above."""
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    high = max(high, low + 1)
    return [10.0**power for power in range(low, high + 1)]
