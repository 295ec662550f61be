"""`python -m benchmarks NAME...`: run benchmarks, write their results, and fail if a bound is missed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.catalog import CATALOG, GROWTH
from benchmarks.command import Sizes, run_all
from benchmarks.growth import growth_report
from exactsink.bench.report.stored import save

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice([*CATALOG, *GROWTH, "growth"]))
@click.option("--list", "listed", is_flag=True, help="List the benchmarks and end.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=3), help="Rounds after the warm-up.")
@click.option("--scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="How much.")
@click.option("--out", default="benchmarks/results", show_default=True, type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Growth: also the greatest sizes.")
@click.option("--work", type=click.Path(path_type=Path, exists=True), help="Where to work: the disk that is measured.")
def main(
    names: tuple[str, ...], listed: bool, rounds: int, scale: float, out: Path, full: bool, work: Path | None
) -> None:
    """Run benchmarks (without a NAME all but those of growth; `growth` runs these, and writes them into `growth.html`).

    Ends with 1 if a bound is missed. The figures are reported in any case.
    """
    benchmarks = {**CATALOG, **GROWTH}
    if listed:
        for benchmark in benchmarks.values():
            click.echo(f"{benchmark.name:<26} {benchmark.about}")
        return
    wanted = [each for name in names or CATALOG for each in (GROWTH if name == "growth" else (name,))]
    sizes = Sizes("benchmarks", 1, rounds, scale, out, work, full)
    reports = list(run_all([benchmarks[name] for name in wanted], sizes))
    if grown := [report for report in reports if report.plan.growths]:
        save(growth_report(grown), out, "growth")
    sys.exit(0 if all(report.measured.holds for report in reports) else 1)


if __name__ == "__main__":
    main()
