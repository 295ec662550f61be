"""A report as one HTML page that loads nothing else: no script, no font, no image, no request.

Imported only when a page is written, because it needs the extra `bench`.
"""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from exactsink.bench.report.charts import drawn
from exactsink.bench.report.model import Report
from exactsink.bench.report.numbers import ABSENT, printable, shown

__all__ = ["to_html"]


def to_html(report: Report) -> str:
    """Return a report as a page. The template escapes every text."""
    pages = Environment(loader=PackageLoader(__package__, ""), autoescape=True, undefined=StrictUndefined)
    pages.trim_blocks = pages.lstrip_blocks = True
    helpers = {"drawn": drawn, "shown": shown, "absent": ABSENT}
    style = Markup(resources.files(__package__).joinpath("style.css").read_text("utf-8"))
    page = pages.get_template("page.html").render(report=report, style=style, **helpers)
    return printable(page)
