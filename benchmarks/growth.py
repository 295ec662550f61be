"""Draw how cost grows: what was measured, the line that was foreseen, and the bound on the bend."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from benchmarks.plan import Benchmark, Growth, Plan
from benchmarks.runner import Figure, Measured
from exactsink.bench.report import Cell, Line, Lines, Report, Section, Table

__all__ = ["growth_report", "growth_section"]

_FACTS = ("cores", "memory_gib", "kernel")


def growth_section(benchmark: Benchmark, plan: Plan, measured: Measured) -> Section:
    """Return a benchmark's charts, and a table of its bends."""
    charts = [_chart(growth, measured) for growth in plan.growths]
    rows = [_row(figure) for figure in measured.figures]
    columns = [
        "the greatest size's cost over what was foreseen",
        "bend",
        "least round",
        "greatest round",
        "at most",
        "",
    ]
    table = Table(f"Bends: {benchmark.name}", columns, rows, plan.notes)
    return Section(benchmark.name.removeprefix("growth_").capitalize(), [benchmark.about], [table], charts)


def growth_report(sections: Sequence[Section], command: str, machine: Mapping[str, Any]) -> Report:
    """Return the report of several."""
    versions = {name: str(value) for name, value in machine.items() if name not in (*_FACTS, "load_average")}
    facts: dict[str, Cell] = {name: machine[name] for name in _FACTS}
    facts["load average at the end"] = machine["load_average"][0]
    return Report("How cost grows", datetime.now(timezone.utc), facts, versions, sections, command)


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
