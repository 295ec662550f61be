"""Draw how cost grows: what was measured, the line that was foreseen, and the bound on the bend."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from benchmarks.plan import Growth
from benchmarks.report import Report as Reported
from benchmarks.runner import Figure, Measured
from exactsink.bench.report.model import Cell, Grid, Line, Lines, Report, Section

__all__ = ["growth_report"]

_FACTS = ("cores", "memory_gib", "kernel")


def growth_report(reports: Sequence[Reported]) -> Report:
    """Return the charts and bends of some benchmarks of growth, run one after the other."""
    machine: Mapping[str, Any] = reports[-1].circumstances["machine"]
    versions = {name: str(value) for name, value in machine.items() if name not in (*_FACTS, "load_average")}
    facts: dict[str, Cell] = {name: machine[name] for name in _FACTS}
    facts["load average at the end"] = reports[-1].circumstances["load_average_at_end"][0]
    versions["commit"] = reports[-1].circumstances["commit"]
    command = reports[-1].circumstances["command"]
    return Report("How cost grows", datetime.now(timezone.utc), facts, versions, list(map(_section, reports)), command)


def _section(reported: Reported) -> Section:
    benchmark, plan, measured = reported.benchmark, reported.plan, reported.measured
    columns = [
        "the greatest size's cost over what was foreseen",
        "bend",
        "least round",
        "greatest round",
        "at most",
        "bound",
    ]
    table = Grid(f"Bends: {benchmark.name}", columns, [_row(figure) for figure in measured.figures], plan.notes)
    charts = [_chart(growth, measured) for growth in plan.growths]
    return Section(benchmark.name.removeprefix("growth_").capitalize(), [benchmark.about], [table], charts)


def _chart(growth: Growth, measured: Measured) -> Lines:
    lines, foreseen = [], []
    for name, variants in growth.series.items():
        cost = {size: statistics.median(measured.samples[variant][growth.metric]) for size, variant in variants.items()}
        lines.append(Line(name, list(cost.items())))
        ends = [growth.since, max(cost)]
        expected = [(size, growth.foreseen(size, cost[growth.since])) for size in ends]
        law = "in proportion" if growth.each else "constant"
        foreseen.append(Line(f"expected: {law}, {name}", expected, expected=True))
        bound = [(size, growth.at_most * value) for size, value in expected]
        foreseen.append(Line(f"bound: {growth.at_most:g} times that", bound, expected=True))
    return Lines(growth.title, growth.x, growth.unit, [*lines, *foreseen], "less")


def _row(figure: Figure) -> list[Cell]:
    bound = figure.bound
    kept = "kept" if figure.holds else "MISSED"
    name = f"{bound.metric}: {bound.of} / {bound.over}" if bound.over else f"{bound.metric}: {bound.of}"
    return [name, figure.value, min(figure.rounds), max(figure.rounds), bound.at_most, kept if bound.at_most else "-"]
