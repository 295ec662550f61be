"""The table of all lines: exactsink, each peer, the ratios of wall and CPU time, and the missed bounds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from benchmarks.runner import Figure

__all__ = ["missed", "save_summary"]

_WALL = ("rows_per_s", "trigger_ms", "wall_s")
_CPU = ("rows_per_cpu_s", "cpu_s")
_HEAD = ["line", "ours", "peer", "ratio, wall", "rounds", "ratio, CPU", "rounds", "bound", "wall", "CPU"]
_ABOUT = """\
# Ours beside its peers

Medians over the rounds of one run, the variants in turns. Rows a second on the wall, with CPU microseconds a row of all
processes in parentheses and by side; a ratio is ours over the peer's. Bounds are for a quiet machine and scale 1.
"""


def save_summary(reports: Sequence[Report], failures: Mapping[str, str], folder: Path) -> str:
    """Write `peers.json` and `peers.md`, and return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"lines": [report.as_json() for report in reports], "missed": missed(reports), "failed": dict(failures)}
    (folder / "peers.json").write_text(json.dumps(whole, indent=1) + "\n")
    rows = [_HEAD, ["---"] * len(_HEAD), *(row for report in reports for row in _rows(report))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    parts = [_ABOUT, table, "", *(f"- **{line}**: {why}" for line, why in failures.items())]
    for report in reports:
        facts = ", ".join(f"{key} {report.circumstances[key]}" for key in ("command", "rounds", "scale", "commit"))
        parts += ["", f"## {report.benchmark.name}", "", f"{facts}", "", *(f"- {note}" for note in report.plan.notes)]
    (folder / "peers.md").write_text("\n".join(parts) + "\n")
    return table


def missed(reports: Sequence[Report]) -> list[str]:
    """Name the missed bounds."""
    return [
        f"{report.benchmark.name}: {figure.bound} -> {figure.value:.2f}"
        for report in reports
        for figure in report.measured.figures
        if not figure.holds
    ]


def _rows(report: Report) -> list[list[str]]:
    figures: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in report.measured.figures:
        mode = "wall" if figure.bound.metric in _WALL else "cpu" if figure.bound.metric in _CPU else None
        if mode and figure.bound.over is not None:
            figures.setdefault((figure.bound.of, figure.bound.over), {})[mode] = figure
    return [_row(report, ours, peer, found) for (ours, peer), found in figures.items()]


def _row(report: Report, ours: str, peer: str, found: Mapping[str, Figure]) -> list[str]:
    line = report.benchmark.name if ours == "ours" else f"{report.benchmark.name}: {ours}"
    cells = [line, _speed(report, ours), f"{peer}: {_speed(report, peer)}"]
    for mode in ("wall", "cpu"):
        figure = found.get(mode)
        cells += (
            [f"{figure.value:.2f}", f"{min(figure.rounds):.2f} to {max(figure.rounds):.2f}"] if figure else ["", ""]
        )
    bounds = {str(figure.bound).rpartition(", ")[2] for figure in found.values() if _kept(figure)}
    kept = [_kept(found[mode]) if mode in found else "" for mode in ("wall", "cpu")]
    return [*cells, " / ".join(sorted(bounds)), *kept]


def _speed(report: Report, variant: str) -> str:
    medians: dict[str, Any] = {
        name: statistics.median(values) for name, values in report.measured.samples[variant].items()
    }
    suffix = "_us_a_row"
    sides = [f"{name.removesuffix(suffix)} {value:.1f}" for name, value in medians.items() if name.endswith(suffix)]
    speed = f"{medians['trigger_ms']:.0f} ms" if "trigger_ms" in medians else f"{medians['rows_per_s'] / 1000:.0f}k"
    return f"{speed} ({medians['us_a_row']:.1f}: {', '.join(sides)})"


def _kept(figure: Figure) -> str:
    if figure.bound.at_least is None and figure.bound.at_most is None:
        return ""
    return "met" if figure.holds else "MISSED"
