"""`python -m benchmarks NAME...`: run benchmarks, write their results, and fail when a bound is missed."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from benchmarks.catalog import CATALOG, GROWTH
from benchmarks.growth import growth_report
from benchmarks.machine import commit, machine
from benchmarks.plan import Benchmark, Setting
from benchmarks.report import Report, figure_line
from benchmarks.runner import run_plan
from benchmarks.warm_spark import WarmSpark
from exactsink.bench.report import save

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice([*CATALOG, *GROWTH, "growth"]))
@click.option("--list", "listed", is_flag=True, help="List the benchmarks and end.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=3), help="Rounds after the warm-up.")
@click.option("--scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="How much.")
@click.option("--out", default="benchmarks/results", show_default=True, type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Growth: the greatest sizes too.")
@click.option("--work", type=click.Path(path_type=Path, exists=True), help="Where to work: the disk that is measured.")
def main(
    names: tuple[str, ...], listed: bool, rounds: int, scale: float, out: Path, full: bool, work: Path | None
) -> None:
    """Run benchmarks (without a NAME all but those of growth; `growth` runs these, and draws them in `growth.html`).

    Ends with 1 when a bound is missed; the figures are reported either way.
    """
    benchmarks = {**CATALOG, **GROWTH}
    if listed:
        for benchmark in benchmarks.values():
            click.echo(f"{benchmark.name:<26} {benchmark.about}")
        return
    wanted = [each for name in names or CATALOG for each in (GROWTH if name == "growth" else (name,))]
    reports = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # clears away what was made
    with tempfile.TemporaryDirectory(dir=work, prefix="exactsink-benchmarks-") as scratch:
        folder = Path(scratch)
        with closing(WarmSpark(folder)) as spark:
            for name in wanted:
                place = folder / name
                place.mkdir()
                setting = Setting(scale, place, spark.session, full)
                reports.append(_run(benchmarks[name], setting, rounds, out))
    if grown := [report for report in reports if report.plan.growths]:
        save(growth_report(grown), out, "growth")
    sys.exit(0 if all(report.measured.holds for report in reports) else 1)


def _run(benchmark: Benchmark, setting: Setting, rounds: int, out: Path) -> Report:
    click.echo(f"{benchmark.name}: {benchmark.about}")
    circumstances: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "scale": setting.scale,
        "rounds": rounds,
        "commit": commit(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
    }
    with benchmark.open(setting) as plan:
        for note in plan.notes:
            click.echo(f"  note: {note}")
        measured = run_plan(plan, rounds, setting.folder, click.echo)
    circumstances["load_average_at_end"] = machine()["load_average"]
    report = Report(benchmark, plan, measured, circumstances)
    report.save(out)
    for figure in measured.figures:
        click.echo(f"  {figure_line(figure)}")
    return report


if __name__ == "__main__":
    main()
