"""A decision guide: what the measured figures say about each thing that a user may care for most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exactsink.bench.report.model import Cell, Section, Table
from exactsink.bench.report.numbers import shown

__all__ = ["Criterion", "guide"]


@dataclass(frozen=True, slots=True)
class Criterion:
    """Something to choose by, `small epochs` say, and each choice's figure; None where it was not measured."""

    name: str
    unit: str
    better: Literal["more", "less"]
    figures: Mapping[str, float | None]
    noise: float = 0.1
    """Figures so close to the best one, as a part of it, are as good."""


def guide(criteria: Sequence[Criterion]) -> Section:
    """Return a section that names the best choice by each criterion, those as good, and the last, with their figures.

    A criterion with fewer than two figures has nothing to choose between: it is left out, and a note says so.
    """
    rows: list[Sequence[Cell]] = []
    prose, notes = [], []
    for criterion in criteria:
        ranked = _ranked(criterion)
        if len(ranked) < 2:
            notes.append(f"{criterion.name}: fewer than two choices were measured")
            continue
        best = [name for name in ranked if _as_good(criterion, ranked[name], next(iter(ranked.values())))]
        others = [name for name in ranked if name not in best]
        prose.append(_sentence(criterion, ranked, best, others))
        last = others[-1] if others else None
        rows.append(
            [criterion.name, criterion.unit, _named(best, ranked), _named(others[:1], ranked), _times(ranked, last)]
        )
    columns = ["you care for", "measured in", "best", "next", "the last, times the best"]
    return Section("What to choose", prose, [Table("Best, next and last by each criterion", columns, rows, notes)])


def _ranked(criterion: Criterion) -> dict[str, float]:
    measured = [(name, value) for name, value in criterion.figures.items() if value is not None and value == value]
    return dict(sorted(measured, key=lambda pair: pair[1], reverse=criterion.better == "more"))


def _as_good(criterion: Criterion, value: float, best: float) -> bool:
    return abs(value - best) <= criterion.noise * abs(best)


def _sentence(criterion: Criterion, ranked: Mapping[str, float], best: Sequence[str], others: Sequence[str]) -> str:
    head = f"{criterion.name}: {_named(best, ranked)} {criterion.unit}"
    if not others:
        return f"{head}; all are within {criterion.noise:.0%} of each other."
    return f"{head}; next is {_named(others[:1], ranked)}."


def _named(names: Sequence[str], ranked: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({shown(ranked[name])})" for name in names)


def _times(ranked: Mapping[str, float], last: str | None) -> Cell:
    if last is None:
        return None
    best = next(iter(ranked.values()))
    return f"{last}: {shown(ranked[last] / best)}" if best else f"{last}: {shown(ranked[last])}"
