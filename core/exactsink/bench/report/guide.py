"""A decision guide: the best choice by each criterion, from the measured figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exactsink.bench.report.model import Cell, Grid
from exactsink.bench.report.numbers import shown

__all__ = ["Criterion", "guide"]


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion, for example small epochs, with all figures of each choice; none if not measured."""

    name: str
    unit: str
    better: Literal["more", "less"]
    figures: Mapping[str, Sequence[float]]
    samples: str = "rounds"
    """The kind of samples behind one choice's figures."""


def guide(caption: str, criteria: Sequence[Criterion]) -> Grid:
    """Return the best choice by each criterion, and by how much the others differ from it.

    A choice whose figures overlap those of the best one is named with it, because no difference was measured. A
    criterion with fewer than two choices is left out, with a note.
    """
    rows: list[Sequence[Cell]] = []
    notes = []
    for criterion in criteria:
        ranked = sorted(
            ((name, values) for name, values in criterion.figures.items() if values),
            key=lambda one: statistics.median(one[1]),
            reverse=criterion.better == "more",
        )
        if len(ranked) < 2:
            notes.append(f"{criterion.name}: fewer than two choices were measured")
            continue
        (_, best), *_ = ranked
        equal = [_named(name, values) for name, values in ranked if _overlap(values, best)]
        others = [_named(name, v) + f": {_difference(v, best)}" for name, v in ranked if not _overlap(v, best)]
        overlap = f": their {criterion.samples} overlap: no difference was measured" if len(equal) > 1 else ""
        rows.append([criterion.name, criterion.unit, ", ".join(equal) + overlap, "; ".join(others)])
        if min(len(values) for _, values in ranked) < 2:
            notes.append(f"{criterion.name}: measured once, so a difference may be noise")
    return Grid(caption, ["you care about", "measured in", "best", "the others"], rows, notes)


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return min(one) <= max(other) and min(other) <= max(one)


def _named(name: str, values: Sequence[float]) -> str:
    return f"{name} ({shown(statistics.median(values))})"


def _difference(values: Sequence[float], best: Sequence[float]) -> str:
    """Return how far a median is from the best one, which is first in the order by medians."""
    value, first = statistics.median(values), statistics.median(best)
    if value >= 2 * first:
        return f"{shown(value / first)} times the best" if first > 0 else "more than the best"
    return f"{abs(value / first - 1) * 100:.0f} % {'less' if value < first else 'more'} than the best"
