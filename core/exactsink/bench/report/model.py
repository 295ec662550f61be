"""The values of a report: plain and frozen. A bench makes them, and the renderers read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

__all__ = ["Bar", "Bars", "Better", "Cell", "Grid", "Report", "Section"]

Cell = str | int | float | None
"""A figure or a text. None means that it was not measured; a note says why."""

Better = Literal["more", "less", ""]
"""Whether more or less is better, if either is."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Figures under a caption. A column's name includes its unit: `rows/s`."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    """The rows. The first cell of a row is its name."""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.caption!r} has {len(self.columns)} columns, and a row {list(row)}")

    def is_figure(self, column: int) -> bool:
        """Return whether a column has figures, which are aligned to the right."""
        return any(isinstance(row[column], int | float) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with a name. `low` and `high` are the extremes of its rounds, and show the noise."""

    label: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from zero, one below the other, in the given order."""

    title: str
    unit: str
    bars: Sequence[Bar]
    better: Better = ""
    advice: str = ""
    """The sentence below the drawing: the choice that its figures suggest."""

    def grid(self) -> Grid:
        """Return every drawn figure, as a table beside the drawing."""
        rows = [(bar.label, bar.value, bar.low, bar.high) for bar in self.bars]
        return Grid(self.title, ["", self.unit, "least", "greatest"], rows)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report: paragraphs of plain text first, then charts, then tables."""

    title: str
    prose: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    charts: Sequence[Bars] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements, and everything that another person needs to repeat them."""

    title: str
    taken: datetime
    """The time of the measurement, with its time zone."""
    machine: Mapping[str, Cell]
    """The machine: cores, memory, disk, kernel. Never its name."""
    versions: Mapping[str, str]
    sections: Sequence[Section] = field(default=())
    command: str = ""

    def __post_init__(self) -> None:
        if self.taken.tzinfo is None:
            raise ValueError("when a report was taken needs a time zone")
