"""A report with all that one may hold: long names, markup in text, figures of any size, and absent ones."""

from __future__ import annotations

from datetime import datetime, timezone

from exactsink.bench.report.guide import Criterion, guide
from exactsink.bench.report.model import Bar, Bars, Grid, Report, Section

EVIL = "</style><script>alert(1)</script> & \"quotes' | a\\b `c` _d_ \x00 <b>"
_LONG = (
    "idempotent_upsert, staged, on SQLite, with a name as long as they come and_a_word_that_nothing_breaks_" + "x" * 40
)

SAMPLE = Report(
    EVIL,
    datetime(2026, 11, 22, 13, 5, tzinfo=timezone.utc),
    {"cores": 2, "memory_gib": 23.4, "kernel": EVIL},
    {"pyspark": "4.3.0"},
    [
        Section(
            "Throughput " + EVIL,
            [EVIL, "Medians of three rounds."],
            [
                Grid(
                    EVIL,
                    ["strategy", "rows/s", "CPU us/row", "epoch p99 ms", "an abort leaves", EVIL],
                    [["files", 426123.4567, 4.6123, 512, "hidden files", None], [_LONG, 67000, None, 1e-9, EVIL, "x"]],
                    [EVIL],
                )
            ],
            [
                Bars(
                    "Rows a second " + EVIL,
                    "rows/s",
                    [Bar("files", 426123.5, 41e4, 937e3), Bar(_LONG, 67000.0, 65e3, 68e3), Bar(EVIL, 5.0, 4.5, 6.0)],
                    "more",
                    "Choose files. " + EVIL,
                )
            ],
        ),
        Section(
            "Choose a way",
            tables=[
                guide(EVIL, [Criterion("throughput", "rows/s", "more", {"files": [426123.5], _LONG: [67e3], EVIL: []})])
            ],
        ),
    ],
    command="exactsink bench --out " + EVIL,
)
