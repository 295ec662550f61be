"""A report as JSON, which has every digit and can be read again, and as the three files people are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from exactsink.bench.report.html import to_html
from exactsink.bench.report.markdown import to_markdown
from exactsink.bench.report.model import Report

__all__ = ["from_json", "save", "to_json"]


def to_json(report: Report) -> str:
    """Return all of a report's values; what is not a number is null."""
    return TypeAdapter(Report).dump_json(report, indent=1).decode() + "\n"


def from_json(text: str | bytes) -> Report:
    """Read what `to_json` wrote. Raises ValueError for anything else."""
    return TypeAdapter(Report).validate_json(text)


def save(report: Report, folder: Path, name: str = "report") -> Sequence[Path]:
    """Write `NAME.html`, `NAME.md` and `NAME.json` into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"html": to_html(report), "md": to_markdown(report), "json": to_json(report)}
    paths = []
    for ending, text in texts.items():
        path = folder / f"{name}.{ending}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
