"""Run a plan: every variant in turns, first to warm up, then round by round. Return medians, and their ratios."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plan import Bound, KnownFault, Plan, Variant
from exactsink.bench.clocks import cpu_reading, cpu_seconds_since

__all__ = ["Figure", "Measured", "run_plan"]

Say = Callable[[str], None]
_TRIES = 3
"""How often a variant is run in a round if the peer fails by a known fault of its own."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A bound's value: from the medians, and round by round, which shows the noise."""

    bound: Bound
    value: float
    rounds: Sequence[float]

    @property
    def holds(self) -> bool:
        return self.bound.holds(self.value)


@dataclass(frozen=True, slots=True)
class Measured:
    """Every variant's metrics, each with its rounds' values in order, and the figures from them."""

    samples: Mapping[str, Mapping[str, Sequence[float]]]
    figures: Sequence[Figure]

    @property
    def holds(self) -> bool:
        return all(figure.holds for figure in self.figures)


def run_plan(plan: Plan, warm_ups: int, rounds: int, folder: Path, say: Say) -> Measured:
    """Measure `rounds` rounds of a plan below `folder`. A variant's error ends it, because half a figure is worthless.

    After a KnownFault of a peer, that variant is run again, at most twice, and `say` gets the reason.
    """
    samples: dict[str, dict[str, list[float]]] = {variant.name: {} for variant in plan.variants}
    for number in range(1 - warm_ups, rounds + 1):
        for variant in plan.variants:
            metrics = _measured(variant, folder, say)
            say(f"  {f'round {number}' if number > 0 else 'warm-up'} {variant.name}: {_reported(metrics)}")
            if number > 0:
                for name, value in metrics.items():
                    samples[variant.name].setdefault(name, []).append(value)
    return Measured(samples, [_figure(bound, samples) for bound in plan.bounds])


def _measured(variant: Variant, folder: Path, say: Say) -> dict[str, float]:
    for _ in range(_TRIES - 1):
        try:
            return _measure(variant, folder)
        except KnownFault as fault:
            say(f"  again {variant.name}: {fault}")
    return _measure(variant, folder)


def _measure(variant: Variant, folder: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder, prefix="round-") as scratch:
        work = variant.prepare(Path(scratch))
        gc.collect()
        os.sync()  # no variant pays for another variant's unwritten pages
        before, started = cpu_reading(), time.perf_counter()
        own = work()
        wall = time.perf_counter() - started
        cpu = cpu_seconds_since(before)
        metrics = {"wall_s": wall, "cpu_s": cpu, **own}
        if "rows" in own:
            metrics.setdefault("rows_per_s", _ratio(own["rows"], metrics["wall_s"]))
            metrics.setdefault("rows_per_cpu_s", _ratio(own["rows"], metrics["cpu_s"]))
        if variant.counted is not None:
            found = variant.counted(Path(scratch))
            if found != own["rows"]:
                raise RuntimeError(f"{variant.name}: {found} rows are there, and {own['rows']:.0f} were written")
        return metrics


def _figure(bound: Bound, samples: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    above = samples[bound.of][bound.metric]
    if bound.over is None:
        return Figure(bound, statistics.median(above), above)
    below = samples[bound.over][bound.metric]
    ratios = [_ratio(a, b) for a, b in zip(above, below, strict=True)]
    return Figure(bound, _ratio(statistics.median(above), statistics.median(below)), ratios)


def _ratio(above: float, below: float) -> float:
    return above / below if below else float("nan")


def _reported(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:,.4g}" for name, value in metrics.items())
