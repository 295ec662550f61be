"""Run some benchmarks one after the other, and print and write their results."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import commit, machine
from benchmarks.plan import Benchmark, Setting
from benchmarks.report import Report, figure_line
from benchmarks.runner import run_plan
from benchmarks.warm_spark import WarmSpark

__all__ = ["Sizes", "run_all"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done, how often, and where. `module` is the argument of `python -m`."""

    module: str
    warm_ups: int
    rounds: int
    scale: float
    out: Path
    work: Path | None
    full: bool = False


def run_all(
    benchmarks: Sequence[Benchmark], sizes: Sizes, failures: MutableMapping[str, str] | None = None
) -> Iterator[Report]:
    """Run benchmarks in one warm session. Report each when it is done, and write it to `NAME.json` and `NAME.md`.

    With `failures`, a benchmark that fails is named there with its reason, and the next one is run.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes all temporary files
    with tempfile.TemporaryDirectory(dir=sizes.work, prefix="exactsink-benchmarks-") as scratch:
        folder = Path(scratch)
        with closing(WarmSpark(folder)) as spark:
            for benchmark in benchmarks:
                place = folder / benchmark.name
                place.mkdir()
                try:
                    yield _run(benchmark, Setting(sizes.scale, place, spark.session, sizes.full), sizes)
                except Exception as failure:
                    if failures is None:
                        raise
                    traceback.print_exc()
                    failures[benchmark.name] = f"{type(failure).__name__}: {failure}"


def _run(benchmark: Benchmark, setting: Setting, sizes: Sizes) -> Report:
    click.echo(f"{benchmark.name}: {benchmark.about}")
    circumstances: dict[str, Any] = {
        "command": shlex.join(["python", "-m", sizes.module, *sys.argv[1:]]),
        "scale": setting.scale,
        "warm_ups": sizes.warm_ups,
        "rounds": sizes.rounds,
        "commit": commit(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
    }
    with benchmark.open(setting) as plan:
        for note in plan.notes:
            click.echo(f"  note: {note}")
        measured = run_plan(plan, sizes.warm_ups, sizes.rounds, setting.folder, click.echo)
    circumstances["load_average_at_end"] = machine()["load_average"]
    report = Report(benchmark, plan, measured, circumstances)
    report.save(sizes.out)
    for figure in measured.figures:
        click.echo(f"  {figure_line(figure)}")
    return report
