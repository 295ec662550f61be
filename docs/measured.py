"""What pages say of measurements, from `docs/figures`: blocks between two comments."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tables import table_lines

from exactsink.bench.report.model import Bar, Cell, Grid
from exactsink.bench.report.numbers import shown
from exactsink.bench.report.stored import from_json

__all__ = ["BLOCKS", "FIGURES", "PAGES_WITH_FIGURES", "SHORT", "take", "with_figures"]

FIGURES = Path(__file__).parent / "figures"
PAGES_WITH_FIGURES = (Path(__file__).parents[1] / "README.md", Path(__file__).parent / "explanation/figures.md")
_BLOCK = re.compile(r"(?<=<!-- figures: )(?P<name>\w+)( -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


def peers_block(found: Mapping[str, Any]) -> str:
    """Return ours beside its peers, from what `make bench-peers` wrote, also where we are behind."""
    rows: list[Sequence[Cell]] = []
    for line in found["lines"]:
        if line["scale"] != 1.0:
            raise ValueError(f"{line['benchmark']} was measured at scale {line['scale']}: too small for a page")
        wanted = [figure for figure in line["figures"] if figure["over"] and figure["metric"] in _SPEEDS]
        # A generator makes rows out of nothing, which no other side can; a spike is not a product.
        rows += [_peer_row(line, figure) for figure in wanted if not _EXTRA.search(figure["of"] + figure["over"])]
    columns = (
        *("job", "against", "speed of the job", "result", "rounds", "the job", "the other side"),
        *("CPU us/row, the job", "CPU us/row, the other side"),
    )
    notes = [f"- not measured: {name}, {why}\n" for name, why in found["failed"].items()]
    first, rounds = found["lines"][0], sorted({line["rounds"] for line in found["lines"]})
    return (
        f"{_taken(first)} Medians of {' or '.join(map(str, rounds))} rounds in turns.\n\n{_lines(columns, rows)}"
        + "".join(notes)
    )


def summary_block(found: Mapping[str, Any]) -> str:
    """Return the speed of ours beside Flink, Spark's sinks and plain clients, a line for each target."""
    rows: list[Sequence[Cell]] = []
    for benchmark, job in _TARGETS.items():
        [line] = [line for line in found["lines"] if line["benchmark"] == benchmark]
        cells = dict.fromkeys(("Flink", "Spark", ""), "-")
        for figure in line["figures"]:
            if figure["of"] == "ours" and figure["metric"] in _SPEEDS and figure["over"] in _OTHERS:
                _, _, faster, result, *_ = _peer_row(line, figure)
                word = figure["over"].split(" ")[0]
                cells[word if word in cells else ""] = f"{shown(faster)}{', ' * bool(result)}{result}"
        rows.append([job, *cells.values()])
    columns = ("exactsink writes", "against Flink", "against Spark", "against a plain client")
    return f"{_taken(found['lines'][0])}\n\n{_lines(columns, rows)}"


def short_block(found: Mapping[str, Any]) -> str:
    """Return some lines of the table of peers, for a reader who has half a minute."""
    rows = []
    for benchmark, peer, job in _SHORT:
        [line] = [line for line in found["lines"] if line["benchmark"] == benchmark]
        [figure] = [
            figure
            for figure in line["figures"]
            if (figure["of"], figure["over"]) == ("ours", peer) and figure["metric"] in _SPEEDS
        ]
        _, _, ratio, result, noise, ours, theirs, *_ = _peer_row(line, figure)
        rows.append([job, peer, ratio, _RESULTS.get(result, result), noise, ours, theirs])
    columns = (
        *("job", "compared with", "ratio of medians", "exactsink is", "lowest and highest round"),
        *("exactsink", "the other tool"),
    )
    return f"{_taken(found['lines'][0])}\n\n{_lines(columns, rows)}"


def faults_block(found: Mapping[str, Any]) -> str:
    """Return what each tool lost and doubled, from what `make bench-faults` wrote: the other tools, then exactsink."""
    columns = ("tool", "fault", "target", "rows", "lost", "doubled", "differ", "reported")
    lines = sorted(found["lines"], key=_is_ours)
    rows = [[_first_sentence(_FAULTS.get(line[column], line[column])) for column in columns] for line in lines]
    columns = ("tool", "fault", "target", "rows", "missing", "doubled", "differ", "reported")
    notes = [f"- not run: {what}\n" for what in found["failed"]]
    return f"{_taken(found)}\n\n{_lines(columns, rows)}" + "".join(notes)


def faults_short(found: Mapping[str, Any]) -> str:
    """Return in how many cases exactsink and the other tools lost or doubled rows."""
    hurt: dict[tuple[str, str], bool] = {}
    for line in found["lines"]:
        case = line["tool"], line["fault"]
        hurt[case] = hurt.get(case, False) or line["lost"] + line["doubled"] > 0
    ours, others = ([hurt[case] for case in hurt if _is_ours({"tool": case[0]}) == own] for own in (True, False))
    return (
        f"**Faults:** after a `kill -9` or a timeout, exactsink lost or doubled rows in {sum(ours)} of {len(ours)} "
        f"cases,\nand the other tools in {sum(others)} of {len(others)} ([faults](#faults)). A case is a tool with one "
        "fault.\n"
    )


def _is_ours(line: Mapping[str, Any]) -> bool:
    return str(line["tool"]).startswith("exactsink")


def _first_sentence(cell: Cell) -> Cell:
    """Cut a message after its first sentence."""
    return re.sub(r"(?<=[a-z])\. .+", " ...", cell) if isinstance(cell, str) else cell


def ways_block(found: Mapping[str, Any]) -> str:
    """Return the tables of `exactsink bench`, without its advice; the page explains them in place of their notes."""
    report = from_json(json.dumps(found))
    rounds = {(bar.label, shown(bar.value)): bar for s in report.sections for chart in s.charts for bar in chart.bars}
    parts = [f"Measured on {report.taken.date()} by `{report.command}` on {_where(report.machine)}.\n"]
    for section in report.sections:
        if not section.title.startswith(_ADVICE):
            parts += [f"**{t.caption}**\n\n{table_lines(_with_rounds(_filled(t), rounds))}\n" for t in section.tables]
    return "\n".join(parts)


def clouds_block(found: Mapping[str, Any]) -> str:
    """Return the speed of Parquet into each cloud's emulator, from what `python -m benchmarks cloud_files` wrote."""
    if found["scale"] != 1.0:
        raise ValueError(f"cloud_files was measured at scale {found['scale']}: too small for a page")
    ratios = {figure["of"]: figure for figure in found["figures"] if figure["metric"] == "rows_per_s"}
    rows: list[Sequence[Cell]] = []
    for name, variant in found["variants"].items():
        figure = ratios.get(name, {"value": "-", "rounds": ["-"]})
        noise = (
            " to ".join(shown(end) for end in (min(figure["rounds"]), max(figure["rounds"]))) if name in ratios else "-"
        )
        cpu = [variant[f"{side}_us_a_row"]["median"] for side in ("own", "server")]
        rows.append([name, variant["rows_per_s"]["median"], figure["value"], noise, *cpu])
    columns = (
        "target",
        "rows/s",
        "speed against S3",
        "rounds",
        "CPU us/row, exactsink and Spark",
        "CPU us/row, server",
    )
    return f"{_taken(found)} Medians of {found['rounds']} rounds in turns.\n\n{_lines(columns, rows)}"


def _filled(table: Grid) -> Grid:
    """Return a table without its empty columns."""
    kept = [n for n in range(len(table.columns)) if any(row[n] != "" for row in table.rows)]
    return replace(table, columns=[table.columns[n] for n in kept], rows=[[row[n] for n in kept] for row in table.rows])


def _with_rounds(table: Grid, rounds: Mapping[tuple[str, str], Bar]) -> Grid:
    """Return a table with the lowest and the highest round beside each figure that has a chart."""

    def cell(row: Sequence[Cell], value: Cell) -> Cell:
        bar = rounds.get((str(row[0]), shown(value)))
        return value if bar is None else f"{shown(value)} ({shown(bar.low)} to {shown(bar.high)})"

    return replace(table, rows=[[cell(row, value) for value in row] for row in table.rows])


BLOCKS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "peers": peers_block,
    "peer_faults": faults_block,
    "bench": ways_block,
    "cloud_files": clouds_block,
}
SHORT = {
    "peers_short": ("peers", short_block),
    "peers_summary": ("peers", summary_block),
    "faults_short": ("peer_faults", faults_short),
}
"""Blocks that show a part of another block's file."""
_ADVICE = ("Choose a way", "Left out")
_RESULTS: Mapping[Cell, str] = {"ahead": "faster", "behind": "slower", "undecided": "undecided"}
_FAULTS = {
    "decided, killed before the commit, and the broker's transaction timeout passes": "timeout",
    "kill -9 in the middle of a batch, after some of its rows reached the target": "killed in a batch",
    "kill -9 after the first sink's write, before the second's": "killed between two sinks",
}
"""The page's name of each fault; the page explains it."""
_EXTRA = re.compile(r"generator|spike")
_NAMES = {
    "ours": "the normal job",
    "ours, at least once": "exactsink, at least once",
    "ours, direct": "exactsink, direct",
    "ours, epochs four times as large": "epochs of 2,000,000",
    "ours, a null sink": "a null sink",
}
"""The names on the page of sides that are exactsink."""
_TARGETS = {
    "kafka": "Kafka, not compressed",
    "kafka_lz4": "Kafka, lz4",
    "kafka_zstd": "Kafka, zstd",
    "postgres": "Postgres, two_phase",
    "json": "JSON files",
    "parquet": "Parquet files",
    "sqlite": "upserts into SQLite, staged",
    "small_epochs": "Parquet files, epochs of 1,000 rows",
    "null": "nothing (job null: the rows are thrown away)",
}
_OTHERS = {
    *("Flink KafkaSink", "Flink JDBC XA", "Flink FileSink", "Spark Kafka sink", "Spark JDBC append"),
    *("Spark stream sink", "Spark noop", "ProducerPerformance", "psql \\copy", "executemany"),
}
_SHORT = (
    ("kafka", "Flink KafkaSink", "Kafka, not compressed"),
    ("kafka_lz4", "Flink KafkaSink", "Kafka, lz4"),
    ("kafka_zstd", "Flink KafkaSink", "Kafka, zstd"),
    ("postgres", "Flink JDBC XA", "Postgres, two-phase"),
    ("parquet", "Flink FileSink", "Parquet files"),
    ("parquet", "Spark stream sink", "Parquet files"),
    ("small_epochs", "Spark stream sink", "small epochs, Parquet files"),
)
_SPEEDS = {"rows_per_s": "rows/s", "trigger_ms": "ms", "wall_s": "s"}


def with_figures(text: str, figures: Path = FIGURES) -> str:
    """Return a page with the figures that it asks for; what was not measured yet is said."""

    def block(asked: re.Match[str]) -> str:
        name = asked["name"]
        file, made_of = SHORT[name] if name in SHORT else (name, BLOCKS[name])
        path = figures / f"{file}.json"
        made = made_of(json.loads(path.read_bytes())) if path.exists() else "Not measured yet.\n"
        return f"{asked['name']} -->\n\n{made}\n"

    return _BLOCK.sub(block, text)


def take(folder: Path) -> None:
    """Keep the newest results of a folder, for all pages from now on."""
    FIGURES.mkdir(exist_ok=True)
    for path in (path for name in BLOCKS for path in folder.rglob(f"{name}.json")):
        shutil.copyfile(path, FIGURES / path.name)


def _peer_row(line: Mapping[str, Any], figure: Mapping[str, Any]) -> Sequence[Cell]:
    """Return ours beside one peer; a ratio of times is turned round, so that more is faster."""
    faster = figure["value"] if figure["metric"] == "rows_per_s" else 1 / figure["value"]
    rounds = [value if figure["metric"] == "rows_per_s" else 1 / value for value in figure["rounds"]]
    sides = [line["variants"][figure[side]] for side in ("of", "over")]
    speeds = [f"{shown(side[figure['metric']]['median'])} {_SPEEDS[figure['metric']]}" for side in sides]
    cpu = [side["us_a_row"]["median"] if "us_a_row" in side else None for side in sides]
    place = "undecided" if min(rounds) <= 1 <= max(rounds) else "ahead" if faster > 1 else "behind"
    noise = f"{shown(min(rounds))} to {shown(max(rounds))}"
    of, over = (_NAMES.get(figure[side], figure[side]) for side in ("of", "over"))
    job = line["benchmark"] if figure["of"] == "ours" else f"{line['benchmark']}: {of}"
    return [job, over, faster, place, noise, *speeds, *cpu]


def _taken(found: Mapping[str, Any]) -> str:
    """Return when it was measured, where, and by which command."""
    return f"Measured on {found['started'][:10]} by `{found['command']}` on {_where(found['machine'])}."


def _where(machine: Mapping[str, Any]) -> str:
    system, *_, architecture = str(machine["kernel"]).split()
    return f"{machine['cores']} cores, {machine['memory_gib']} GiB, {system} {architecture}"


def _lines(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    return table_lines(Grid("", columns, rows)) + "\n"
