"""A report of measurements: values, and the three forms they are read in: JSON, Markdown, one HTML page."""

from __future__ import annotations

from exactsink.bench.report.guide import Criterion, guide
from exactsink.bench.report.html import to_html
from exactsink.bench.report.markdown import table_lines, to_markdown
from exactsink.bench.report.model import Bar, Bars, Cell, Chart, Line, Lines, Reference, Report, Section, Table
from exactsink.bench.report.numbers import shown
from exactsink.bench.report.stored import from_json, save, to_json

__all__ = [
    "Bar",
    "Bars",
    "Cell",
    "Chart",
    "Criterion",
    "Line",
    "Lines",
    "Reference",
    "Report",
    "Section",
    "Table",
    "from_json",
    "guide",
    "save",
    "shown",
    "table_lines",
    "to_html",
    "to_json",
    "to_markdown",
]
