"""Report how cost grows: the measured costs, the expected line, and the bound on the bend."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from benchmarks.plan import Growth
from benchmarks.report import Report as Reported
from benchmarks.runner import Figure, Measured
from exactsink.bench.report.model import Cell, Grid, Report, Section

__all__ = ["growth_report"]

_FACTS = ("cores", "memory_gib", "kernel")


def growth_report(reports: Sequence[Reported]) -> Report:
    """Return the costs and bends of some benchmarks of growth, run one after the other."""
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
    costs = [_costs(growth, measured) for growth in plan.growths]
    return Section(benchmark.name.removeprefix("growth_").capitalize(), [benchmark.about], [*costs, table])


def _costs(growth: Growth, measured: Measured) -> Grid:
    """Return each size's cost beside the cost that the first size that counts predicts for it."""
    costs = {
        name: {size: statistics.median(measured.samples[of][growth.metric]) for size, of in variants.items()}
        for name, variants in growth.series.items()
    }
    law = "in proportion" if growth.each else "constant"
    rows: list[Sequence[Cell]] = []
    for size in sorted({size for cost in costs.values() for size in cost}):
        cells: list[Cell] = [size]
        for cost in costs.values():
            cells += [cost.get(size), growth.foreseen(size, cost[growth.since]) if size >= growth.since else None]
        rows.append(cells)
    columns = [growth.x, *(column for name in costs for column in (name, f"{name}, foreseen {law}"))]
    return Grid(f"{growth.title}: {growth.unit}, at most {growth.at_most:g} times that", columns, rows)


def _row(figure: Figure) -> list[Cell]:
    bound = figure.bound
    kept = "kept" if figure.holds else "MISSED"
    name = f"{bound.metric}: {bound.of} / {bound.over}" if bound.over else f"{bound.metric}: {bound.of}"
    return [name, figure.value, min(figure.rounds), max(figure.rounds), bound.at_most, kept if bound.at_most else "-"]
