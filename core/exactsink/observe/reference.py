"""The reference tables of events and metrics as Markdown, from the tables that the code itself goes by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exactsink.observe.live import LIVE_METRICS
from exactsink.observe.metrics import METRICS
from exactsink.protocol.events import EVENTS, POINTS

__all__ = ["markdown_table", "events_table", "metrics_table", "points_table"]


def points_table() -> str:
    """Return the protocol's points, in their order."""
    return markdown_table(
        ("point", "what happens between its two sides"), ((f"`{p}`", says) for p, says in POINTS.items())
    )


def events_table() -> str:
    """Return every event that is no point, with its fields; job is in all, epoch in most."""
    rows = ((f"`{name}`", kind.reports, _names(kind.fields)) for name, kind in EVENTS.items())
    return markdown_table(("event", "what it reports", "fields"), rows)


def metrics_table() -> str:
    """Return every metric by its names in Prometheus and OpenTelemetry."""
    metrics = (*METRICS, *LIVE_METRICS)
    rows = ((f"`{m.prometheus}`", f"`{m.opentelemetry}`", m.kind, _names(m.labels), m.unit, m.help) for m in metrics)
    return markdown_table(("Prometheus", "OpenTelemetry", "kind", "labels", "unit", "what it reports"), rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells may have bars and paragraphs."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n\n", "<br>") for cell in line) + " |\n" for line in lines
    )
