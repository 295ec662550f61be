"""Charts as SVG, drawn by pygal in the page's colours. Imported only when a page is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pygal
from markupsafe import Markup
from pygal.etree import etree
from pygal.style import Style

from exactsink.bench.report.model import Bars
from exactsink.bench.report.numbers import printable, shown, tick

__all__ = ["drawn"]

# pygal adds a finder for maps that has no `find_spec`, so code that calls every finder fails on it.
sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]

_COLOURS = tuple(f"var(--s{number})" for number in range(6))  # of style.css
_LONGEST_LABEL = 34
_FORM = {
    "background": "transparent", "plot_background": "transparent", "foreground": "var(--ink)",
    "foreground_strong": "var(--ink)", "foreground_subtle": "var(--soft)", "ci_colors": ("var(--ink)",),
    "guide_stroke_color": "var(--rule)", "major_guide_stroke_color": "var(--rule)", "guide_stroke_dasharray": "none",
    "major_guide_stroke_dasharray": "none", "font_family": "system-ui, sans-serif", "opacity": "1",
    "stroke_opacity": "1", "label_font_size": 13, "major_label_font_size": 13, "legend_font_size": 13,
    "title_font_size": 13, "transition": "0s",
}  # fmt: skip


def drawn(chart: Bars, id: str) -> Markup:
    """Return a chart as an element of a page, without scripts. `id` must be unique in the page."""
    made = _bars(chart)
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


def _label(text: str) -> str:
    """Cut a text that would leave no room for the drawing. The table below the chart has the whole text."""
    return printable(text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "\u2026")
