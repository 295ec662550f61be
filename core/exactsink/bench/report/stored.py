"""A report as JSON, which has every digit and can be read back, and as the two files for people."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pydantic import TypeAdapter

from exactsink.bench.report.model import Report
from exactsink.contract import ConfigError
from exactsink.toolkit.drivers import missing

__all__ = ["from_json", "page_writer", "save", "to_json"]


def to_json(report: Report) -> str:
    """Return all of a report's values as JSON. A value that is not a finite number is null."""
    return TypeAdapter(Report).dump_json(report, indent=1).decode() + "\n"


def from_json(text: str | bytes) -> Report:
    """Read the text of `to_json`. Raises ValueError for any other text."""
    return TypeAdapter(Report).validate_json(text)


def page_writer() -> ModuleType:
    """Import the writer of pages, the only user of its libraries. Raises ConfigError with the line for pip."""
    try:
        return importlib.import_module("exactsink.bench.report.page")
    except ImportError as error:
        why, fix = missing(("jinja2", "pygal")) or str(error), "pip install 'exactsink[bench]'"
        raise ConfigError("the page of a bench can't be written", why=why, next=fix) from error


def save(report: Report, folder: Path, name: str = "report") -> Sequence[Path]:
    """Write `NAME.html` and `NAME.json` into a folder, and make the folder. Raises ConfigError."""
    texts = {"html": page_writer().to_html(report), "json": to_json(report)}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending, text in texts.items():
        path = folder / f"{name}.{ending}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
