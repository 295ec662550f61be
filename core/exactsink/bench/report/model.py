"""What a report holds. Plain frozen values: who measures makes them, and the renderers read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

__all__ = ["Bar", "Bars", "Better", "Cell", "Chart", "Line", "Lines", "Report", "Section", "Grid"]

Cell = str | int | float | None
"""A figure or a text. None is what was not measured: a note says why."""

Better = Literal["more", "less", ""]
"""Which way is good, where one is."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Figures under a caption. A column's name has its unit: `rows/s`."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    """The first cell of a row names it."""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.caption!r} has {len(self.columns)} columns, and a row {list(row)}")


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with a name; `low` and `high` are the least and greatest of its rounds, and show the noise."""

    label: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from zero, one below the other, in the order that they are given in."""

    title: str
    unit: str
    bars: Sequence[Bar]
    better: Better = ""
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True)
class Line:
    """Points from left to right. An expected line, or a bound, was computed, not measured; it is drawn so."""

    name: str
    points: Sequence[tuple[float, float]]
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over two logarithmic axes: what grows in proportion rises by a power of ten for each.

    All values are above zero.
    """

    title: str
    x: str
    y: str
    """What is measured, with its unit."""
    lines: Sequence[Line]
    better: Better = ""
    kind: Literal["lines"] = "lines"

    def __post_init__(self) -> None:
        for line in self.lines:
            if not line.points or any(not (0 < number < float("inf")) for point in line.points for number in point):
                raise ValueError(f"chart {self.title!r}: line {line.name!r} needs points, all of them above zero")


Chart = Bars | Lines


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report. Paragraphs of plain text first, then charts, then tables."""

    title: str
    prose: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured, and what another person needs to repeat it."""

    title: str
    taken: datetime
    """When, with its time zone."""
    machine: Mapping[str, Cell]
    """What it was measured on: cores, memory, disk, kernel. Never its name."""
    versions: Mapping[str, str]
    sections: Sequence[Section] = field(default=())
    command: str = ""

    def __post_init__(self) -> None:
        if self.taken.tzinfo is None:
            raise ValueError("when a report was taken needs a time zone")
