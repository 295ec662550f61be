"""A batch of Parquet into S3, beside Spark's own write by S3A's committers: `python -m benchmarks.s3_committers`.

It runs on Spark 4.0.0, because Maven Central has Spark's binding to these committers for it. Its options are those of
`python -m benchmarks`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyspark
from tests.servers.s3a_jars import COMMITTERS
from tests.servers.spark_versions import python_with_spark, spark_home

from benchmarks.cases.object_store import bucket, counted
from benchmarks.command import Sizes, run_all
from benchmarks.peers.ours import job_of_file
from benchmarks.peers.sides import SPARK, Sides, bounded
from benchmarks.peers.source import ROWS, Source, epochs_of, make_source
from benchmarks.plan import Benchmark, Metrics, Plan, Setting, Variant, Work
from benchmarks.s3_server import s3_server, s3a_settings

if TYPE_CHECKING:
    from tests.servers.s3 import S3Server

_VERSION = "4.0.0"
_CLOUD = "org.apache.spark.internal.io.cloud"
_SETTINGS = {
    "spark.sql.sources.commitProtocolClass": f"{_CLOUD}.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": f"{_CLOUD}.BindingParquetOutputCommitter",
}
_THEIRS = {"magic": "Spark, magic committer", "directory": "Spark, staging committer"}


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 8, 500_000))
    with s3_server(COMMITTERS) as server:
        spark = setting.spark()
        staged = (setting.folder / "staged").as_uri()
        conf = {**s3a_settings(server), **_SETTINGS, "fs.s3a.committer.staging.tmp.path": staged}
        for name, value in conf.items():
            spark.conf.set(name, value)
        sides = Sides(source.rows, {server.pid: "server"})
        works = {"ours": partial(_ours, setting, source, server)}
        works |= {shown: partial(_theirs, setting, source, server, name) for name, shown in _THEIRS.items()}
        variants = [Variant(name, partial(_prepared, sides, work), counted(server)) for name, work in works.items()]
        bounds = [bound for shown in _THEIRS.values() for bound in bounded("ours", shown, 1.2)]
        yield Plan(variants, bounds, [source.note, f"Spark {pyspark.__version__}; versitygw on the same disk"])


def _prepared(sides: Sides, work: Callable[[Path], Metrics | None], folder: Path) -> Work:
    return sides.timed(SPARK, partial(work, folder))


def _ours(setting: Setting, source: Source, server: S3Server, folder: Path) -> None:
    job = job_of_file(folder, "files", path=f"s3://{bucket(server, folder)}/out")
    try:
        job.write(setting.spark().read.schema(source.kind.ddl).parquet(str(source.folder)), run="all")
    finally:
        job.close()


def _theirs(setting: Setting, source: Source, server: S3Server, committer: str, folder: Path) -> None:
    spark = setting.spark()
    spark.conf.set("fs.s3a.committer.name", committer)
    target = f"s3a://{bucket(server, folder)}/out"
    spark.read.schema(source.kind.ddl).parquet(str(source.folder)).write.parquet(target)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=3), help="Rounds after the warm-up.")
@click.option("--scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="How much.")
@click.option("--out", default="benchmarks/results", show_default=True, type=click.Path(path_type=Path))
@click.option("--work", type=click.Path(path_type=Path, exists=True), help="Where to work: the disk that is measured.")
def main(rounds: int, scale: float, out: Path, work: Path | None) -> None:
    """Run it, and end with 1 if a bound is missed."""
    if pyspark.__version__ != _VERSION:
        python = python_with_spark(_VERSION)
        environment = {**os.environ, "SPARK_HOME": str(spark_home(python)), "PYSPARK_PYTHON": str(python)}
        os.execve(python, [str(python), "-m", "benchmarks.s3_committers", *sys.argv[1:]], environment)
    about = "A batch of Parquet into S3, beside Spark's own write by S3A's committers."
    sizes = Sizes("benchmarks.s3_committers", 1, rounds, scale, out, work)
    reports = list(run_all([Benchmark("s3_committers", about, _open)], sizes))
    sys.exit(0 if all(report.measured.holds for report in reports) else 1)


if __name__ == "__main__":
    main()
