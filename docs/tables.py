"""Tables of the pages as Markdown: of points, events and metrics, from what the code goes by, and of a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import exactsink
from exactsink.bench.report.model import Grid
from exactsink.bench.report.numbers import shown
from exactsink.observe.live import LIVE_METRICS
from exactsink.observe.metrics import METRICS
from exactsink.protocol.events import EVENTS, POINTS

__all__ = ["events_table", "markdown_table", "metrics_table", "points_table", "table_lines"]

_CORE = Path(exactsink.__file__).parent
_REPORT = re.compile(r"report\(\s*\"(\w+)\",[^\n]*?level=logging\.(\w+)")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def points_table() -> str:
    """Return the protocol's points, in their order."""
    return markdown_table(("point", "work between before and after"), ((f"`{p}`", says) for p, says in POINTS.items()))


def events_table() -> str:
    """Return every event that is no point, with its level and its fields; job is in all, epoch in most."""
    levels = dict(found.groups() for source in _CORE.rglob("*.py") for found in _REPORT.finditer(source.read_text()))
    rows = ((f"`{name}`", levels.get(name, "INFO"), kind.reports, _names(kind.fields)) for name, kind in EVENTS.items())
    return markdown_table(("event", "level", "meaning", "fields"), rows)


def metrics_table() -> str:
    """Return every metric by its names in Prometheus and OpenTelemetry."""
    metrics = (*METRICS, *LIVE_METRICS)
    rows = ((f"`{m.prometheus}`", f"`{m.opentelemetry}`", m.kind, _names(m.labels), m.unit, m.help) for m in metrics)
    return markdown_table(("Prometheus", "OpenTelemetry", "kind", "labels", "unit", "meaning"), rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells may have bars and paragraphs."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n\n", "<br>") for cell in line) + " |\n" for line in lines
    )


def table_lines(table: Grid) -> str:
    """Return a table's Markdown, without its caption and notes."""
    lines = [
        [_plain(column) for column in table.columns],
        ["---:" if table.is_figure(n) else "---" for n in range(len(table.columns))],
        *([_plain(shown(cell)) for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
