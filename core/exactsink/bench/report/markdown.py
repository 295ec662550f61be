"""A report as Markdown: all its text, and its charts as tables of their figures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exactsink.bench.report.figures import figures, is_figure
from exactsink.bench.report.model import Grid, Report, Section
from exactsink.bench.report.numbers import shown

__all__ = ["table_lines", "to_markdown"]

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def to_markdown(report: Report) -> str:
    """Return a report as one Markdown page."""
    parts = [f"# {_plain(report.title)}", f"Taken {report.taken.isoformat(sep=' ', timespec='minutes')}."]
    if report.command:
        parts.append("    " + " ".join(report.command.split()))
    for section in report.sections:
        parts += _section(section)
    about = [*report.machine.items(), *report.versions.items()]
    parts.append("## Where it was measured\n\n" + "\n".join(f"- {_plain(k)}: {_plain(shown(v))}" for k, v in about))
    return "\n\n".join(parts) + "\n"


def table_lines(table: Grid) -> str:
    """Return a table's Markdown, without its caption and notes."""
    lines = [
        [_plain(column) for column in table.columns],
        ["---:" if is_figure(table, n) else "---" for n in range(len(table.columns))],
        *([_plain(shown(cell)) for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _section(section: Section) -> Iterator[str]:
    yield f"## {_plain(section.title)}"
    yield from map(_plain, section.prose)
    for table in (*map(figures, section.charts), *section.tables):
        yield f"**{_plain(table.caption)}**"
        yield table_lines(table)
        if table.notes:
            yield "\n".join(f"- {_plain(note)}" for note in table.notes)


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
