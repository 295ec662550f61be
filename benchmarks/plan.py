"""The parts of a benchmark: variants, which run in turns, and the bounds that their figures must keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Benchmark", "Bound", "Growth", "KnownFault", "Metrics", "Plan", "Setting", "Variant", "Work"]

Metrics = Mapping[str, float]
"""A run's own figures by name. The runner adds `wall_s` and `cpu_s`, and the rows per second if `rows` is given, but it
never replaces a figure of the run's own."""

Work = Callable[[], Metrics]
"""The work that is timed."""


class KnownFault(RuntimeError):
    """A peer failed by a known fault of its own. Another try may succeed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances of a benchmark: how much to do (1.0 is the declared size), a folder to work in, and Spark."""

    scale: float
    folder: Path
    spark: Callable[[], SparkSession]
    """Return the run's only warm session. The first benchmark that needs it starts it."""
    full: bool = False
    """Whether to go up to the greatest sizes, which takes minutes."""

    def scaled(self, count: int, least: int = 1) -> int:
        """Scale a count, never below `least`."""
        return max(least, round(count * self.scale))


@dataclass(frozen=True, slots=True)
class Variant:
    """One side of a comparison. `prepare` gets an empty folder each round, and returns the work that is timed.

    `counted` gets the same folder afterwards, and counts the target's rows. If they differ from `rows`, the run fails.
    """

    name: str
    prepare: Callable[[Path], Work]
    counted: Callable[[Path], int] | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure, and its bound: the median of `metric` of variant `of`, divided by that of `over` if named.

    Without `at_least` and `at_most`, the figure is only reported.
    """

    metric: str
    of: str
    over: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value keeps the bound. NaN keeps none."""
        if value != value:
            return False
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        figure = f"{self.metric}: {self.of}" + (f" / {self.over}" if self.over else "")
        least = [] if self.at_least is None else [f"at least {self.at_least:g}"]
        most = [] if self.at_most is None else [f"at most {self.at_most:g}"]
        return figure + (", " + " and ".join(least + most) if least or most else "")


@dataclass(frozen=True, slots=True)
class Growth:
    """How a metric grows with a size, for reports, and the bound on its bend.

    `each` is the metric for one unit of the size if cost may grow in proportion; None if it must not grow at all.
    """

    title: str
    x: str
    metric: str
    unit: str
    series: Mapping[str, Mapping[int, str]]
    """Each line's variants, by size."""
    at_most: float
    since: int
    """The size that predicts the cost of the greatest size. Below it, fixed costs dominate."""
    each: str | None = None

    def bounds(self) -> Sequence[Bound]:
        """Return each line's bound: the greatest size's cost over the cost that `since` predicts."""
        return [
            Bound(self.each or self.metric, names[max(names)], names[self.since], at_most=self.at_most)
            for names in self.series.values()
        ]

    def foreseen(self, size: int, cost: float) -> float:
        """Return the cost of a size, predicted from the cost of `since`."""
        return cost * size / self.since if self.each else cost


@dataclass(frozen=True, slots=True)
class Plan:
    """A prepared benchmark. `notes` are facts that a reader must know: sizes, and omissions with their reasons."""

    variants: Sequence[Variant]
    bounds: Sequence[Bound]
    notes: Sequence[str] = ()
    growths: Sequence[Growth] = ()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named benchmark. `open` sets up the shared parts of its rounds, and removes them at the end of the block."""

    name: str
    about: str
    open: Callable[[Setting], AbstractContextManager[Plan]]
