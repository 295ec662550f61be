"""A bench's figures as a report."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from exactsink.bench.machine import machine_facts, version_of
from exactsink.bench.measure import Measured, WayFigures
from exactsink.bench.report import Bar, Bars, Cell, Criterion, Report, Section, Table, guide
from exactsink.bench.runs import MeasuredRun
from exactsink.bench.timeline import PHASES, Epoch, quantile

__all__ = ["report_of"]

_PACKAGES = ("exactsink", "pyspark", "pyarrow", "confluent-kafka", "psycopg", "SQLAlchemy")
_PHASES = (
    "open prepares the sinks; write is the Spark job, with the tasks' pre-commits; vote checks what they wrote; "
    "decide is the journal's one record; commit ends with the last sink's; complete writes state.json."
)


def report_of(measured: Measured, command: str) -> Report:
    """Return all figures of a bench."""
    sections = [_rates(measured), _readers(measured), _several(measured), _restarts(measured)]
    if len(measured.ways) > 1:
        sections.insert(0, _guide(measured))
    return Report(
        "What each way to write costs",
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
        rows.append(
            [
                one.way.name,
                one.traits.guarantee,
                one.median(_rate),
                one.median(_cpu),
                one.median(lambda run: _ms(run, lambda epoch: epoch.seconds)),
                one.bytes_per_row,
            ]
        )
        steps = [one.median(lambda run, p=phase: _ms(run, lambda epoch: epoch.phases[p])) for phase in PHASES]  # type: ignore[misc]
        phases.append([one.way.name, *steps])
    count = measured.rows
    prose = [
        f"{count.epochs - 1} epochs of {count.an_epoch:,} rows, after one to warm up. Rows: {count.about}.",
        (
            "The rows that a reader found after each run were counted: they are the decided ones. CPU time is that "
            "of all own processes (driver, JVM, Python workers); a server's own is not in it."
        ),
    ]
    columns = ("way", "guarantee", "rows/s", "CPU us/row", "ms an epoch", "bytes/row in the target")
    tables = [
        Table("Throughput, medians of the rounds", columns, rows, ["Requests a row: no client here counts them."]),
        Table("An epoch's phases, medians, ms", ("way", *PHASES), phases, [_PHASES]),
    ]
    return Section("Rows and CPU time", prose, tables, _bars(measured.ways))


def _bars(ways: Sequence[WayFigures]) -> Sequence[Bars]:
    def bars(title: str, unit: str, figure: Callable[[MeasuredRun], float], better: str) -> Bars:
        drawn = []
        for one in ways:
            values = [figure(run) for run in one.runs]
            drawn.append(Bar(one.way.name, statistics.median(values), min(values), max(values)))
        return Bars(title, unit, drawn, better="more" if better == "more" else "less")

    return [bars("Throughput", "rows/s", _rate, "more"), bars("CPU time", "us/row", _cpu, "less")]


def _readers(measured: Measured) -> Section:
    rows: list[Sequence[Cell]] = []
    notes = ["Measured in a run of its own, beside a reader that looks all the time."]
    for one in measured.ways:
        first, last = ([view[place] * 1000 for view in one.views] for place in (0, 1))
        sink = next(iter(one.watched.measured[0].commits))
        held = [epoch.held(sink) * 1000 for epoch in one.watched.measured]
        seen = [quantile(side, part) if side else None for side in (first, last) for part in (0.5, 0.99)]
        rows.append([one.way.name, *seen, None if one.traits.visible_early else quantile(held, 0.5)])
        if not one.views:
            notes.append(
                f"{one.way.name}: rows of several epochs have the same keys, so no reader can count an epoch's"
            )
        if one.traits.visible_early:
            notes.append(f"{one.way.name}: rows show before the decision, so nothing is held; an abort removes nothing")
        elif one.way.target.holds:
            notes.append(f"{one.way.name} holds: {one.way.target.holds}")
        else:
            notes.append(f"{one.way.name} holds nothing else: its rows wait aside")
    seen_at = [f"{row} row, {part}, ms" for row in ("first", "last") for part in ("p50", "p99")]
    table = Table("From the begin of an epoch", ("way", *seen_at, "rows held, p50, ms"), rows, notes)
    epochs = measured.rows.epochs - 1
    prose = [
        (
            f"When a reader saw the first and the last row of each of {epochs} epochs. Rows are held from their tasks' "
            "begin to the sink's commit, by our events; what waits with them is said below the table."
        )
    ]
    return Section("What readers see", prose, [table])


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
    columns = (
        "sinks",
        "rows read/s",
        "CPU us/row read",
        "times the first line",
        "differ p50, ms",
        "differ at most, ms",
    )
    prose = [
        (
            "Sinks of one job share one pass over its rows. They are decided at one moment and committed side by side: "
            "in between, for as long as they differ, one shows an epoch and another does not yet."
        )
    ]
    return Section(
        "More than one sink", prose, [Table("One job with several sinks, medians of the rounds", columns, rows)]
    )


def _restarts(measured: Measured) -> Section | None:
    rows: list[Sequence[Cell]] = [
        [f"{one.way.name}: {killed.point}", killed.seconds, killed.in_doubt, killed.bytes_left]
        for one in measured.ways
        for killed in one.killed
    ]
    if not rows:
        return None
    columns = ("killed", "s to the next complete epoch", "participants left in doubt", "bytes left for good")
    prose = [
        (
            "A driver's process was killed at each point and another one started, with the real journal and the real "
            "target, small epochs, no Spark: a session's start comes on top. Every row was there once at the end."
        ),
        (
            "In doubt is what the dead driver left begun or prepared; the next one ends it. Left for good is "
            "by how much more the target grew than in an epoch without a kill, what an abort leaves; rows that "
            "compress differently make a little more or less of it."
        ),
    ]
    return Section("After a kill", prose, [Table("Restarts", columns, rows)])


def _skipped(measured: Measured) -> Section | None:
    left_out = {
        **measured.skipped,
        "exactly once against at least once": "no backend has a writer of the same kind that is at least once",
    }
    rows = [[name, " ".join(why.split())] for name, why in left_out.items()]
    return Section("Left out", [], [Table("What was not measured", ("what", "why"), rows)])


def _guide(measured: Measured) -> Section:
    def criterion(name: str, unit: str, better: str, figure: Callable[[WayFigures], float | None]) -> Criterion:
        figures = {one.way.name: figure(one) for one in measured.ways}
        return Criterion(name, unit, "more" if better == "more" else "less", figures)

    return guide(
        [
            criterion("throughput", "rows/s", "more", lambda one: one.median(_rate)),
            criterion("CPU time", "us/row", "less", lambda one: one.median(_cpu)),
            criterion("rows seen soon", "ms to an epoch's last row, p50", "less", _seen_last),
            criterion("a short pause after a kill", "s, the longest", "less", _longest_restart),
        ]
    )


def _seen_last(one: WayFigures) -> float | None:
    return quantile([last * 1000 for _, last in one.views], 0.5) if one.views else None


def _longest_restart(one: WayFigures) -> float | None:
    return max((killed.seconds for killed in one.killed), default=None)


def _rate(run: MeasuredRun) -> float:
    return run.rows_per_second


def _cpu(run: MeasuredRun) -> float:
    return run.cpu_us_per_row


def _ms(run: MeasuredRun, seconds: Callable[[Epoch], float]) -> float:
    return statistics.median(map(seconds, run.measured)) * 1000
