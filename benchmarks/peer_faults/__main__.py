"""`python -m benchmarks.peer_faults`: play the faults on ours and its peers; count what is lost or doubled."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path

import click
from tests.e2e.drivers import ForkServer
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import own_kafka
from tests.servers.kafka_jars import VERSION

from benchmarks.cases.postgres_server import serving
from benchmarks.machine import commit, machine
from benchmarks.peer_faults import flink, ours, spark_job, spark_sinks
from benchmarks.peer_faults.plays import Line, Play, Stage, lines_of
from benchmarks.peer_faults.table import save
from benchmarks.peers.flink.session import VERSIONS

_PLAYS = (*ours.PLAYS, *flink.PLAYS, *spark_sinks.PLAYS)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tool", default="", help="Only tools whose name contains this.")
@click.option("--out", default="benchmarks/results", show_default=True, type=click.Path(path_type=Path))
def main(tool: str, out: Path) -> None:
    """Play each fault on each tool. Ends with 1 if exactsink loses or doubles a row, or if a fault was not played."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    lines: list[Line] = []
    failed: list[str] = []
    plays = [play for play in _PLAYS if tool in play.tool]
    if not plays:
        raise click.UsageError(f"no tool is named {tool}")
    with _stage() as stage:
        for play in plays:
            click.echo(f"{play.tool}: {play.fault}")
            try:
                lines += _played(play, stage)
            except Exception as failure:  # the other plays still count; the command ends with 1
                failed.append(f"{play.tool}: {play.fault}: {failure}")
                click.echo(f"  NOT PLAYED: {failure}")
    bad = failed + [f"{line.tool} lost or doubled rows" for line in lines if line.is_ours and not line.holds]
    command = shlex.join(["python", "-m", "benchmarks.peer_faults", *sys.argv[1:]])
    save(lines, failed, {"command": command, "started": started, **_versions()}, out)
    for what in bad:
        click.echo(f"FAILED: {what}", err=True)
    sys.exit(1 if bad else 0)


def _played(play: Play, stage: Stage) -> list[Line]:
    with tempfile.TemporaryDirectory(dir=stage.folder, prefix="play-") as folder:
        lines = lines_of(play, play.act(stage.at(Path(folder))))
    for line in lines:
        counted = f"{line.rows} rows, {line.lost} lost, {line.doubled} doubled, {line.differ} differ between sinks"
        click.echo(f"  {line.target}: {counted}; {line.reported}")
    return lines


@contextmanager
def _stage() -> Iterator[Stage]:
    connectors = [word for setting in spark_job.CONNECTORS.items() for word in ("--conf", "=".join(setting))]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exactsink-faults-")))
        kafka, postgres = stack.enter_context(own_kafka()), stack.enter_context(serving())
        forks = stack.enter_context(closing(ForkServer()))
        jvm = stack.enter_context(closing(WarmJvm(folder / "jvm", *connectors)))
        yield Stage(folder, kafka, postgres, forks, jvm)


def _versions() -> dict[str, object]:
    return {
        "commit": commit(),
        "machine": machine(),
        "servers": f"Apache Kafka {VERSION}, one broker; PostgreSQL on the same machine; tables without a key",
        "Spark's connectors": spark_job.PACKAGES,
        "Flink": ", ".join(VERSIONS),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes all temporary files
    main()
