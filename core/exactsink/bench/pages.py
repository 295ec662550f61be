"""A bench's figures as a report."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone

from exactsink.bench.machine import machine_facts, version_of
from exactsink.bench.measure import Measured, WayFigures
from exactsink.bench.report.guide import Criterion, guide
from exactsink.bench.report.model import Bar, Bars, Cell, Grid, Report, Section
from exactsink.bench.runs import MeasuredRun
from exactsink.bench.timeline import PHASES, TimedEpoch, quantile

__all__ = ["report_of"]

_PACKAGES = ("exactsink", "pyspark", "pyarrow", "confluent-kafka", "psycopg", "SQLAlchemy")
_PHASES = (
    "open prepares the sinks; write is the Spark job, with the tasks' pre-commits; vote checks what they wrote; "
    "decide is the journal's one record; commit ends when the last sink has committed; complete writes state.json."
)


def report_of(measured: Measured, command: str) -> Report:
    """Return all figures of a bench."""
    sections = [*_guides(measured), _rates(measured), _readers(measured), _several(measured)]
    return Report(
        "The cost of each way to write",
        datetime.now(timezone.utc),
        {**machine_facts(), "load average": round(os.getloadavg()[0], 2)},
        {package: version for package in _PACKAGES if (version := version_of(package))},
        [section for section in (*sections, _skipped(measured)) if section is not None],
        command,
    )


def _rates(measured: Measured) -> Section:
    rows: list[Sequence[Cell]] = []
    phases: list[Sequence[Cell]] = []
    for one in measured.ways:
        took = one.median(lambda run: _ms(run, lambda epoch: epoch.seconds))
        rows.append([one.way.name, one.traits.guarantee, one.median(_rate), one.median(_cpu), took, one.bytes_per_row])
        steps = [one.median(lambda run, p=phase: _ms(run, lambda epoch: epoch.phases[p])) for phase in PHASES]  # type: ignore[misc]
        phases.append([one.way.name, *steps])
    count = measured.rows
    prose = (
        f"{count.epochs - 1} epochs of {count.an_epoch:,} rows, after one to warm up. Rows: {count.about}. A reader "
        "counted the rows after each run: they are the decided ones. CPU time is that of the driver, its JVM and its "
        "Python workers, without servers."
    )
    columns = ("way", "guarantee", "rows/s", "CPU us/row", "ms an epoch", "bytes/row in the target")
    uncounted = "Requests per row have no column, because none of these clients counts its requests."
    tables = [
        Grid("Throughput, medians of the rounds", columns, rows, [uncounted]),
        Grid("An epoch's phases, medians, ms", ("way", *PHASES), phases, [_PHASES]),
    ]
    return Section("Rows and CPU time", [prose], tables)


def _readers(measured: Measured) -> Section:
    rows: list[Sequence[Cell]] = []
    notes = ["Measured in a separate run, while a reader queries all the time."]
    for one in measured.ways:
        first, last = ([view[place] * 1000 for view in one.views] for place in (0, 1))
        sink = next(iter(one.watched.measured[0].commits))
        held = [epoch.held(sink) * 1000 for epoch in one.watched.measured]
        seen = [quantile(side, part) if side else None for side in (first, last) for part in (0.5, 0.99)]
        rows.append([one.way.name, *seen, None if one.traits.visible_early else quantile(held, 0.5)])
        if not one.views:
            notes.append(f"{one.way.name}: epochs share keys, so no reader can count the rows of one")
        if one.traits.visible_early:
            notes.append(f"{one.way.name}: tasks show rows before the decision: no row waits, an abort removes none")
        elif one.way.target.holds:
            notes.append(f"{one.way.name} holds: {one.way.target.holds}")
        else:
            notes.append(f"{one.way.name} holds nothing else: its rows wait in staging")
    seen_at = [f"{row} row, {part}, ms" for row in ("first", "last") for part in ("p50", "p99")]
    table = Grid("From the start of an epoch", ("way", *seen_at, "rows held, p50, ms"), rows, notes)
    epochs = measured.rows.epochs - 1
    prose = (
        f"When a reader saw the first and the last row of each of {epochs} epochs. A sink holds rows from the start of "
        "their tasks to its commit, by exactsink's events. The notes below the table name other objects that wait."
    )
    return Section("When readers see rows", [prose], [table])


def _several(measured: Measured) -> Section | None:
    if not measured.together:
        return None
    base = statistics.median(map(_cpu, next(iter(measured.together.values()))))
    rows: list[Sequence[Cell]] = []
    for name, runs in measured.together.items():
        windows = [epoch.window * 1000 for run in runs for epoch in run.measured]
        cpu = statistics.median(map(_cpu, runs))
        several = len(runs[0].epochs[0].rows) > 1
        differ = [quantile(windows, 0.5), max(windows)] if several else [None, None]
        rows.append([name, statistics.median(map(_rate, runs)), cpu, cpu / base, *differ])
    columns = ("sinks", "rows read/s", "CPU us/row read", "times the first", "differ p50, ms", "differ at most, ms")
    prose = (
        "The sinks of a job share one pass over its rows. One decision covers them, and they commit in parallel: "
        "while they differ, one sink shows an epoch, and another one does not yet."
    )
    table = Grid("One job with several sinks, medians of the rounds", columns, rows)
    return Section("More than one sink", [prose], [table])


def _skipped(measured: Measured) -> Section | None:
    rows = [[name, " ".join(why.split())] for name, why in measured.skipped.items()]
    return Section("Left out", [], [Grid("What was not measured", ("what", "why"), rows)]) if rows else None


def _guides(measured: Measured) -> Iterator[Section]:
    """Compare the ways of each store with more than one, because a job chooses its store before it chooses a way."""
    stores: dict[str, list[WayFigures]] = {}
    for one in measured.ways:
        stores.setdefault(one.way.sink or one.way.kind, []).append(one)
    for store, ways in stores.items():
        if len(ways) > 1:
            yield _guide(store, ways)


def _guide(store: str, ways: Sequence[WayFigures]) -> Section:
    rates = {one.way.name: list(map(_rate, one.runs)) for one in ways}
    cpu = {one.way.name: list(map(_cpu, one.runs)) for one in ways}
    seen = {one.way.name: [last * 1000 for _, last in one.views] for one in ways}
    criteria = [
        Criterion("throughput", "rows/s", "more", rates),
        Criterion("CPU time", "us/row", "less", cpu),
        Criterion("rows seen soon", "ms to an epoch's last row", "less", seen, "epochs"),
    ]
    prose = [f"The ways to write to {store}, by medians. Overlapping rounds show no difference between two ways."]
    table = guide(f"{store}: the best way", criteria)
    charts = [_bars(one, str(row[2])) for one, row in zip(criteria[:2], table.rows, strict=False)]
    return Section(f"Choose a way for {store}", prose, [table], charts)


def _bars(one: Criterion, best: str) -> Bars:
    bars = [Bar(name, statistics.median(values), min(values), max(values)) for name, values in one.figures.items()]
    choice = "by the guarantee: the best ones do not differ" if "rounds overlap" in best else best
    title, advice = one.name[0].upper() + one.name[1:], f"If you care about {one.name}, choose {choice}."
    return Bars(title, one.unit, bars, one.better, advice)


def _rate(run: MeasuredRun) -> float:
    return run.rows_per_second


def _cpu(run: MeasuredRun) -> float:
    return run.cpu_us_per_row


def _ms(run: MeasuredRun, seconds: Callable[[TimedEpoch], float]) -> float:
    return statistics.median(map(seconds, run.measured)) * 1000
