"""Write the results: JSON with every round, and a Markdown table with the machine and the command."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plan import Benchmark, Plan
from benchmarks.runner import Figure, Measured

__all__ = ["Report", "figure_line"]

_LARGE = 1000


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's results, with all facts that another person needs to repeat them."""

    benchmark: Benchmark
    plan: Plan
    measured: Measured
    circumstances: Mapping[str, Any]
    """The command, scale, commit, machine and date."""

    def save(self, folder: Path) -> None:
        """Write `NAME.json` and `NAME.md` into a folder. It makes the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.benchmark.name}.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        (folder / f"{self.benchmark.name}.md").write_text(self.as_markdown())

    def as_json(self) -> dict[str, Any]:
        """Return all values as plain JSON. NaN becomes null."""
        variants = {
            variant: {
                name: {"median": _plain(statistics.median(values)), "rounds": [_plain(value) for value in values]}
                for name, values in metrics.items()
            }
            for variant, metrics in self.measured.samples.items()
        }
        head = {"benchmark": self.benchmark.name, "about": self.benchmark.about, **self.circumstances}
        figures = [_as_json(figure) for figure in self.measured.figures]
        return {**head, "notes": list(self.plan.notes), "variants": variants, "figures": figures}

    def as_markdown(self) -> str:
        """Return the figures, the medians, and their circumstances."""
        names = list(dict.fromkeys(name for metrics in self.measured.samples.values() for name in metrics))
        rows = [
            [variant, *(_number(statistics.median(m[name])) if name in m else "" for name in names)]
            for variant, m in self.measured.samples.items()
        ]
        figures = [
            [str(f.bound), f"**{_number(f.value)}**", f"{_number(min(f.rounds))} to {_number(max(f.rounds))}", _kept(f)]
            for f in self.measured.figures
        ]
        parts = [
            f"# {self.benchmark.name}\n\n{self.benchmark.about}",
            _table(["figure and bound", "ratio of medians, or median", "rounds", "bound"], figures),
            _table(["variant (medians)", *names], rows),
            *(f"- {note}" for note in self.plan.notes),
            _circumstances(self.circumstances),
        ]
        return "\n\n".join(parts) + "\n"


def figure_line(figure: Figure) -> str:
    """Return a figure in one line."""
    noise = f"rounds {_number(min(figure.rounds))} to {_number(max(figure.rounds))}"
    return f"{_kept(figure):<6}  {figure.bound} -> {_number(figure.value)}  ({noise})"


def _kept(figure: Figure) -> str:
    if figure.bound.at_least is None and figure.bound.at_most is None:
        return "-"
    return "kept" if figure.holds else "MISSED"


def _as_json(figure: Figure) -> dict[str, Any]:
    bound = figure.bound
    reported = {name: getattr(bound, name) for name in ("metric", "of", "over", "at_least", "at_most")}
    return {
        **reported,
        "value": _plain(figure.value),
        "rounds": [_plain(v) for v in figure.rounds],
        "kept": figure.holds,
    }


def _circumstances(circumstances: Mapping[str, Any]) -> str:
    lines = []
    for name, value in circumstances.items():
        reported = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else value
        lines.append(f"{name}: `{reported}`  ")
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.3g}"


def _plain(value: float) -> float | None:
    return round(value, 9) if value == value else None
