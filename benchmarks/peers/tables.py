"""`python -m benchmarks.peers.tables`: ours beside Spark's own sinks of Iceberg and Delta, on Spark 4.0.

The tables' jars are of that Spark. So this restarts itself there, with the jars and settings of one kind of table.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pyspark
from tests.servers.kafka_jars import jars
from tests.servers.spark_versions import python_with_spark, spark_home

from benchmarks.command import Sizes, run_all
from benchmarks.peer_faults import spark_tables
from benchmarks.peers.lines import tables
from benchmarks.peers.summary import missed, save_summary

_KINDS = {
    "delta": (tables.DELTA, spark_tables.DELTA, tables.DELTA_CONF),
    "iceberg": (tables.ICEBERG, spark_tables.ICEBERG, tables.ICEBERG_CONF),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("kind", type=click.Choice(list(_KINDS)))
@click.option("--warm-ups", default=3, show_default=True, type=click.IntRange(min=1), help="Rounds before they count.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=3), help="Rounds that count.")
@click.option("--scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="How much.")
@click.option("--out", default="benchmarks/results/tables", show_default=True, type=click.Path(path_type=Path))
def main(kind: str, warm_ups: int, rounds: int, scale: float, out: Path) -> None:
    """Write the same stream into a table by both, and print the missed bounds."""
    line, jar_set, conf = _KINDS[kind]
    if pyspark.__version__ != spark_tables.SPARK:
        settings = {"spark.jars": ",".join(map(str, sorted(jars(jar_set).glob("*.jar")))), **conf}
        python = python_with_spark(spark_tables.SPARK)
        given = " ".join(f"--conf {key}={value}" for key, value in settings.items())
        os.environ |= {"PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell", "SPARK_HOME": str(spark_home(python))}
        os.execv(python, [str(python), "-m", "benchmarks.peers.tables", *sys.argv[1:]])
    reports = list(run_all([line], Sizes("benchmarks.peers.tables", warm_ups, rounds, scale, out, None)))
    click.echo(save_summary(reports, {}, out))
    for one in missed(reports):
        click.echo(f"MISSED  {one}")


if __name__ == "__main__":
    main()
