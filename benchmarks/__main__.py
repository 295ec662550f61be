"""`python -m benchmarks NAME...`: run benchmarks, write their results, and fail when a bound is missed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.catalog import CATALOG
from benchmarks.command import Sizes, run_all

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(CATALOG)))
@click.option("--list", "listed", is_flag=True, help="List the benchmarks and end.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=3), help="Rounds after the warm-up.")
@click.option("--scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="How much.")
@click.option("--out", default="benchmarks/results", show_default=True, type=click.Path(path_type=Path))
@click.option("--work", type=click.Path(path_type=Path, exists=True), help="Where to work: the disk that is measured.")
def main(names: tuple[str, ...], listed: bool, rounds: int, scale: float, out: Path, work: Path | None) -> None:
    """Run benchmarks (all without a NAME). Ends with 1 when a bound is missed; the figures are reported either way."""
    if listed:
        for benchmark in CATALOG.values():
            click.echo(f"{benchmark.name:<26} {benchmark.about}")
        return
    sizes = Sizes("benchmarks", rounds, scale, out, work)
    kept = [report.measured.holds for report in run_all([CATALOG[name] for name in names or CATALOG], sizes)]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
