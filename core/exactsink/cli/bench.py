"""`exactsink bench`: measure every way to write that a job could choose, side by side, with the same rows."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from exactsink.bench.measure import Bench, Measured
from exactsink.bench.pages import report_of
from exactsink.bench.report.model import Report
from exactsink.bench.report.numbers import shown
from exactsink.bench.report.stored import page_writer, save
from exactsink.bench.rows import make_rows
from exactsink.bench.ways import base_of, find_ways
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError
from exactsink.job.registry import Registry, installed_plugins
from exactsink.spark.jvm import end_session
from exactsink.spark.session import make_session

__all__ = ["bench"]


def bench(job: str | None, rows: int, epochs: int, rounds: int, out: str | None) -> None:
    """Measure, print the tables, and write them into `out`. Raises ConfigError if nothing can be measured."""
    if out is not None:
        page_writer()  # before minutes of measuring
    with _on_signals(signal.default_int_handler, signal.SIGTERM):  # ends like Ctrl-C: all is removed
        measured = _measured(job, rows, epochs, rounds)
    command = f"exactsink bench --rows {rows} --epochs {epochs} --rounds {rounds}" + (" --job JOB.toml" if job else "")
    report = report_of(measured, command)
    _print(report)
    if out is not None:
        for path in save(report, Path(out), "bench"):
            _progress(f"written: {path}")
    if not measured.ways:
        raise ConfigError("nothing could be measured", why="the table above says why", next="exactsink check JOB.toml")


def _measured(path: str | None, rows: int, epochs: int, rounds: int) -> Measured:
    registry, base = Registry(installed_plugins()), base_of(path)
    found = find_ways(base, registry)
    for name, why in found.skipped.items():
        _progress(f"left out: {name}: {why}")
    _progress(f"{len(found.measured)} ways to write; the names of all temporary targets begin with {base.prefix}")
    spark = make_session(base.config)
    runs: Bench | None = None
    try:
        base.folder.mkdir(parents=True)
        runs = Bench(base, spark, make_rows(base, spark, rows, epochs + 1), registry, _progress)
        measured = runs.measure(found.measured, rounds)
    finally:
        with _on_signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM), ExitStack() as end:  # all, even if one fails
            if runs is not None:
                end.callback(runs.close)
            end.callback(shutil.rmtree, base.folder, ignore_errors=True)
            end.callback(end_session, spark)  # so that no task writes to removed targets
    return Measured(measured.rows, measured.ways, measured.together, {**found.skipped, **measured.skipped})


def _print(report: Report) -> None:
    for section in report.sections:
        print(f"\n{section.title}")
        for table in section.tables:
            print(f"\n{table.caption}")
            print_table(table.columns, [[shown(cell) for cell in row] for row in table.rows], sys.stdout)
            for note in table.notes:
                print(f"  {note}")


def _progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


@contextmanager
def _on_signals(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
