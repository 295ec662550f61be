"""Measure every way to write, one after the other in rounds, and remove everything afterwards."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from exactsink.bench.rows import Rows
from exactsink.bench.runs import Copy, MeasuredRun, PreparedJob, prepare, run_job
from exactsink.bench.target import Place
from exactsink.bench.watch import Watch, count, views
from exactsink.bench.ways import Base, Way, reason
from exactsink.contract import ExactsinkError, Fatal, Traits
from exactsink.job.registry import Registry
from exactsink.testing.processes import FreshProcess

if TYPE_CHECKING:
    SparkSession = Any  # pyspark's own, which only exactsink.spark imports

__all__ = ["Bench", "Measured", "WayFigures"]

_Found = TypeVar("_Found")


class Miscounted(Fatal):
    """A reader does not see exactly the decided rows."""


@dataclass(frozen=True, slots=True)
class WayFigures:
    """The result of one way: a run in each round, one run beside a reader."""

    way: Way
    traits: Traits
    runs: Sequence[MeasuredRun]
    bytes_per_row: float | None
    watched: MeasuredRun
    views: Sequence[tuple[float, float]]
    """When a reader saw the first and the last row, after each epoch's begin; empty if rows replace each other."""

    def median(self, figure: Callable[[MeasuredRun], float]) -> float:
        return statistics.median(figure(run) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures. `together` are jobs with several sinks, `skipped` the ways without figures, with the reason."""

    rows: Rows
    ways: Sequence[WayFigures]
    together: Mapping[str, Sequence[MeasuredRun]]
    skipped: Mapping[str, str]


class Bench:
    """Run jobs over copies. Each copy is dropped after its run; after an error, once Spark has stopped."""

    def __init__(
        self,
        base: Base,
        spark: SparkSession,
        rows: Rows,
        registry: Registry,
        progress: Callable[[str], None],
    ) -> None:
        self._base = base
        self._spark = spark
        self._rows = rows
        self._registry = registry
        self._progress = progress
        self._jobs = 0
        self._left: list[Copy] = []
        self._unique: dict[str, bool] = {}

    def measure(self, ways: Sequence[Way], rounds: int) -> Measured:
        """Measure all ways. A way that raises one of exactsink's errors is skipped, with that error."""
        skipped: dict[str, str] = {}
        self._each(ways[:1], "warming up", self._alone, skipped)
        found = [
            self._each(ways, f"round {number} of {rounds}", self._alone, skipped) for number in range(1, rounds + 1)
        ]
        watched = self._each(ways, "beside a reader", self._watched, skipped)
        figures = []
        for way in ways:
            if way.name not in skipped:
                runs, traits, sizes = zip(*(one[way.name] for one in found), strict=True)
                run, seen = watched[way.name]
                figures.append(WayFigures(way, traits[0], runs, sizes[-1], run, seen))
        return Measured(self._rows, figures, self._together(figures, rounds), skipped)

    def close(self) -> None:
        """Drop the copies that an error has left, once no task can write to them any more. Raises Fatal."""
        self._drop(self._left)

    def _each(
        self, ways: Sequence[Way], what: str, work: Callable[[Way], _Found], skipped: dict[str, str]
    ) -> dict[str, _Found]:
        found = {}
        for way in ways:
            if way.name in skipped:
                continue
            self._progress(f"{way.name}: {what}")
            try:
                found[way.name] = work(way)
            except Miscounted:
                raise
            except ExactsinkError as error:
                skipped[way.name] = self._base.document.scrubbed(reason(error))
        return found

    def _alone(self, way: Way) -> tuple[MeasuredRun, Traits, float | None]:
        with self._copies([way]) as copies:
            prepared, run = self._counted(copies)
            [copy], [sink] = copies, prepared.sinks.values()
            size, written = way.target.size(copy.place), run.written(sink.name)
            return run, sink.backend.traits, None if size is None or not written else size / written

    def _counted(self, copies: Sequence[Copy]) -> tuple[PreparedJob, MeasuredRun]:
        """Run a job, and count the rows that a reader then sees. Raises Miscounted."""
        prepared = prepare(self._base, copies, self._registry)
        run = run_job(self._spark, self._rows, prepared)
        for copy in copies:
            expected = self._expected(copy, run)
            if expected is not None:
                _check(count(copy.way.target, copy.place, expected), expected, copy.way)
        return prepared, run

    def _watched(self, way: Way) -> tuple[MeasuredRun, Sequence[tuple[float, float]]]:
        with self._copies([way]) as copies:
            prepared = prepare(self._base, copies, self._registry)
            [copy] = copies
            watch = Watch(way.target, copy.place, self._base.folder)
            with FreshProcess(watch) as reader:
                watch.wait_ready()
                run = run_job(self._spark, self._rows, prepared)
                expected = self._expected(copy, run)
                watch.stop(expected or 0)
                seen = reader.answer()
            if expected is None:
                return run, ()
            _check(seen[-1].rows, expected, way)
            return run, views(seen, run.epochs, copy.place.sink)[1:]

    def _together(self, figures: Sequence[WayFigures], rounds: int) -> Mapping[str, Sequence[MeasuredRun]]:
        """Run jobs with one, two and four sinks of the first exact way, and one with a way of each backend."""
        exact = [one.way for one in figures if not one.traits.visible_early]
        if not exact:
            return {}
        kinds = list({way.sink or way.kind: way for way in reversed(exact)}.values())[::-1]
        jobs = {f"{number} x {exact[0].name}": [exact[0]] * number for number in (1, 2, 4)}
        if len(kinds) > 1:
            jobs[" and ".join(way.name for way in kinds)] = kinds
        found: dict[str, list[MeasuredRun]] = {name: [] for name in jobs}
        for number in range(1, rounds + 1):
            for name, ways in jobs.items():
                self._progress(f"{name}, in one job: round {number} of {rounds}")
                with self._copies(ways) as copies:
                    found[name].append(self._counted(copies)[1])
        return found

    def _expected(self, copy: Copy, run: MeasuredRun) -> int | None:
        """Return how many rows a reader must find, None if rows of several epochs replace each other."""
        way = copy.way
        if way.target.keys and way.name not in self._unique:
            frame = self._rows.frame(self._spark)
            keys = frame.selectExpr(*(f"`{key}`" for key in way.target.keys)).distinct().count()
            self._unique[way.name] = keys == frame.count()
        return run.written(copy.place.sink) if self._unique.get(way.name, True) else None

    @contextmanager
    def _copies(self, ways: Sequence[Way]) -> Iterator[Sequence[Copy]]:
        self._jobs += 1
        job = f"{self._base.prefix}-{self._jobs}"
        copies = [Copy(way, Place(job, f"sink-{number}", self._base.folder)) for number, way in enumerate(ways)]
        self._left += copies
        yield copies
        self._drop(copies)
        self._left = [copy for copy in self._left if copy not in copies]

    def _drop(self, copies: Sequence[Copy]) -> None:
        failed = []
        for copy in copies:
            try:
                copy.way.target.drop(copy.place)
            except Exception as error:  # of any client; the other copies are dropped all the same
                failed.append(f"{copy.place.name}: {self._base.document.scrubbed(str(error))}")
        if failed:
            raise Fatal(
                "the bench could not remove the copies that it made", why="; ".join(failed), next="remove it yourself"
            )


def _check(found: int, expected: int, way: Way) -> None:
    if found != expected:
        raise Miscounted(
            f"{way.name}: {expected:,} rows were decided, and a reader sees {found:,}",
            why="the promise does not hold here, or the bench's reader is wrong",
            next="report it",
        )
