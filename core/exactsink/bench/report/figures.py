"""A chart's figures as a table: what is read where no drawing is, and beside each drawing."""

from __future__ import annotations

from collections.abc import Sequence

from exactsink.bench.report.model import Bars, Cell, Chart, Grid, Lines

__all__ = ["figures", "is_figure"]


def figures(chart: Chart) -> Grid:
    """Return every figure that a chart draws."""
    if isinstance(chart, Bars):
        bars = [(bar.label, bar.value, bar.low, bar.high) for bar in chart.bars]
        return Grid(chart.title, ["", chart.unit, "least", "greatest"], bars)
    return _of_lines(chart)


def is_figure(table: Grid, column: int) -> bool:
    """Return whether a column has figures, which stand to the right."""
    return any(isinstance(row[column], int | float) for row in table.rows)


def _of_lines(chart: Lines) -> Grid:
    places = sorted({x for line in chart.lines for x, _ in line.points})
    values = [dict(line.points) for line in chart.lines]
    rows: list[Sequence[Cell]] = [[x, *(points.get(x) for points in values)] for x in places]
    return Grid(f"{chart.title}: {chart.y}", [chart.x, *(line.name for line in chart.lines)], rows)
