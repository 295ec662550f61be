"""What a benchmark declares: its variants, which are run in turns, and the bounds that their figures must keep."""

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
"""A run's own figures by name. The runner adds `wall_s` and `cpu_s`, and where `rows` is given the rows per second;
of what it would add, a figure of the run's own stands."""

Work = Callable[[], Metrics]
"""What is timed."""


class KnownFault(RuntimeError):
    """A peer failed by a known fault of its own, which another try may not meet."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a benchmark is given: how much to do (1.0 is the declared size), a folder to work in, and Spark."""

    scale: float
    folder: Path
    spark: Callable[[], SparkSession]
    """Return the run's one warm session; started by the first benchmark that asks for it."""
    full: bool = False
    """Whether to go as far as sizes go, which takes minutes."""

    def scaled(self, count: int, least: int = 1) -> int:
        """Scale a count, never below `least`."""
        return max(least, round(count * self.scale))


@dataclass(frozen=True, slots=True)
class Variant:
    """One side of a comparison. `prepare` gets an empty folder each round, and gives the work that is timed.

    `counted` gets the same folder when the clock stands, and counts the target's rows: as many as `rows`, or it ends.
    """

    name: str
    prepare: Callable[[Path], Work]
    counted: Callable[[Path], int] | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure, and what it must keep: the median of `metric` of variant `of`, divided by that of `over` if named.

    Without `at_least` and `at_most` the figure is reported and binds nobody.
    """

    metric: str
    of: str
    over: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value keeps the bound; what is not a number keeps none."""
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
    """How a metric grows with a size, as it is reported, and the bound on its bend.

    `each` is the metric for one unit of the size, where cost may grow in proportion; None: it must not grow at all.
    """

    title: str
    x: str
    metric: str
    unit: str
    series: Mapping[str, Mapping[int, str]]
    """Each line's variants, by size."""
    at_most: float
    since: int
    """The size from which on the cost of the greatest one is foreseen; below it fixed costs weigh."""
    each: str | None = None

    def bounds(self) -> Sequence[Bound]:
        """Return what binds each line: the greatest size's cost over what `since` foresees."""
        return [
            Bound(self.each or self.metric, names[max(names)], names[self.since], at_most=self.at_most)
            for names in self.series.values()
        ]

    def foreseen(self, size: int, cost: float) -> float:
        """Return the cost of a size, foreseen from the cost of `since`."""
        return cost * size / self.since if self.each else cost


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark made ready. `notes` say what a reader must know: sizes, and what was left out and why."""

    variants: Sequence[Variant]
    bounds: Sequence[Bound]
    notes: Sequence[str] = ()
    growths: Sequence[Growth] = ()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named benchmark. `open` sets up what all its rounds share, and clears it away when the block ends."""

    name: str
    about: str
    open: Callable[[Setting], AbstractContextManager[Plan]]
