"""`python -m benchmarks.peers`: ours beside Flink, Spark's own sinks and the servers' tools; `make bench-peers`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.command import Sizes, run_all
from benchmarks.peers.lines import files, kafka, null, postgres, small_epochs, sqlite
from benchmarks.peers.summary import missed, save_summary

__all__ = ["main"]

_LINES = {
    line.name: line
    for line in (
        kafka.KAFKA,
        kafka.KAFKA_LZ4,
        kafka.KAFKA_ZSTD,
        postgres.POSTGRES,
        files.JSON,
        files.PARQUET,
        sqlite.SQLITE,
        small_epochs.SMALL_EPOCHS,
        null.NULL,
    )
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", multiple=True, type=click.Choice(list(_LINES)), help="A line of the table; may be repeated.")
@click.option("--warm-ups", default=3, show_default=True, type=click.IntRange(min=1), help="Rounds before they count.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=3), help="Rounds that count.")
@click.option("--scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="How much.")
@click.option("--out", default="benchmarks/results/peers", show_default=True, type=click.Path(path_type=Path))
@click.option("--work", type=click.Path(path_type=Path, exists=True), help="Where to work: the disk that is measured.")
@click.option("--strict", is_flag=True, help="End with 1 when a bound is missed.")
def main(
    only: tuple[str, ...], warm_ups: int, rounds: int, scale: float, out: Path, work: Path | None, strict: bool
) -> None:
    """Run the lines of the table, and print the missed bounds.

    Ends with 1 if a line fails: rows are missing in a target, or a variant can't run.
    """
    failures: dict[str, str] = {}
    sizes = Sizes("benchmarks.peers", warm_ups, rounds, scale, out, work)
    reports = list(run_all([_LINES[name] for name in only or _LINES], sizes, failures))
    click.echo(save_summary(reports, failures, out))
    for line in missed(reports):
        click.echo(f"MISSED  {line}")
    for name, why in failures.items():
        click.echo(f"FAILED  {name}: {why}")
    sys.exit(1 if failures or (strict and missed(reports)) else 0)


if __name__ == "__main__":
    main()
