"""The log: a line for each epoch, the job in every line, and what is shown of what a JVM prints."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.unit import observe_runs as runs

from exactsink.contract import Event
from exactsink.observe.logs import JsonLines, LogContext, TextLines, in_context
from exactsink.observe.progress import EpochLines
from exactsink.spark.jvm import reported

ROOT = logging.getLogger()


@pytest.fixture(params=[TextLines, JsonLines])
def lines(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What a command's log would hold, as text or as JSON."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(request.param())
    ROOT.addHandler(handler)
    yield out
    ROOT.removeHandler(handler)


def test_an_epoch_is_one_line_and_every_line_has_the_job_its_generation_and_epoch(lines: io.StringIO) -> None:
    context = LogContext("sim")
    with in_context(context):
        logging.getLogger("exactsink_kafka.writer").warning("before any claim")
        runs.two_epochs(context, EpochLines(every_seconds=lambda: 0.0))
        logging.getLogger("py4j").error("a library's own words")
    found = [
        line for line in lines.getvalue().splitlines() if "exactsink.epoch" in line or "WARN" in line or "py4j" in line
    ]
    assert len(found) == 4
    if found[0].startswith("{"):
        first, *epochs, last = map(json.loads, found)
        assert [line["epoch"] for line in epochs] == [0, 1]
        assert epochs[1]["rows"] == {"lake": 3, "table": 3}
        assert epochs[1]["bytes"] == {"lake": 21, "table": 21}
        assert set(epochs[1]["phases"]) == {
            *("open_epoch", "write", "vote", "decide", "commit:lake", "commit:table", "complete")
        }
        assert [(line["job"], line.get("generation"), line.get("epoch")) for line in (first, last)] == [
            ("sim", None, None),
            ("sim", 1, 1),
        ]
        assert {"time", "level", "logger", "message"} <= set(last)
    else:
        first, _, second, last = found
        assert first.endswith("before any claim job=sim")
        assert " INFO exactsink.epoch epoch job=sim epoch=1 seconds=0" in second
        assert " rows: lake=3 table=3 phases: open_epoch=0" in second
        assert second.endswith(" generation=1")
        assert last.endswith("a library's own words job=sim generation=1 epoch=1")


def test_without_a_terminal_fast_epochs_share_a_line_in_ten_seconds_and_the_end_has_one(lines: io.StringIO) -> None:
    """A batch that comes when the last line is young waits for another one, or for the heartbeat."""
    now = 100.0
    progress = EpochLines(clock=lambda: now)
    with in_context(LogContext("sim")):
        for epoch, now in enumerate([100.0, 101.0, 105.0, 110.0, 112.0]):
            progress(Event("open_epoch", "sim", "before", epoch))
            now += 0.5
            progress(Event("commit:lake", "sim", "after", epoch, {"seconds": 0.25}))
            progress(Event("return", "sim", "before", epoch, {"rows": {"lake": 600}}))
            progress(Event("return", "sim", "after", epoch))
        for now in (119.0, 134.0, 149.0):  # noqa: B007 - the clock reads it
            progress(Event("beat", "sim"))
        ran = {"epochs": 5, "last_epoch": 4, "rows": {"lake": 3000}, "seconds": 51.2, "restarts": 1, "stopped_by": None}
        progress(Event("run_ended", "sim", fields=ran))
    found = lines.getvalue().splitlines()
    assert len(found) == 4
    if found[0].startswith("{"):
        shown = list(map(json.loads, found))
        counts = [(line["epoch"], line["epochs"], line["rows"]["lake"], line["seconds"]) for line in shown[:3]]
        assert counts == [(0, 1, 600, 0.5), (3, 3, 1800, 1.5), (4, 1, 600, 0.5)]
        assert shown[1]["phases"] == {"commit:lake": 0.75}
        ended = {name: value for name, value in ran.items() if value is not None}
        assert shown[3].items() >= {**ended, "event": "run_ended", "job": "sim"}.items()
    else:
        assert " epoch job=sim epoch=0 seconds=0.5 rows: lake=600 " in found[0]
        assert " epoch job=sim epoch=3 epochs=3 seconds=1.5 rows: lake=1,800 phases: commit:lake=0.75" in found[1]
        assert " epoch job=sim epoch=4 seconds=0.5 " in found[2]
        assert " run_ended job=sim epochs=5 last_epoch=4 seconds=51.2 restarts=1 rows: lake=3,000" in found[3]


@pytest.mark.parametrize(("terminal", "verbose", "shown"), [(False, 0, 1), (True, 0, 3), (False, 1, 3)])
def test_who_watches_sees_every_epoch(
    terminal: bool, verbose: int, shown: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: terminal, write=len))
    caplog.set_level([logging.WARNING, logging.INFO][verbose], "exactsink")
    caplog.set_level(logging.INFO, "exactsink.epoch")
    progress = EpochLines()
    for epoch in range(3):
        progress(Event("return", "sim", "before", epoch, {"rows": {}}))
    assert len(caplog.records) == shown


PRINTED = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/22 23:22:52 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
26/11/22 23:22:53 WARN TaskSetManager: Lost task 0.0 in stage 1.0: org.apache.spark.api.python.PythonException:
  File "worker.py", line 1
ValueError: bad
\tat org.apache.spark.Executor.run(Executor.scala)
26/11/22 23:22:54 ERROR Executor: Exception in task 0.0
java.io.IOException: disk
\tat java.base
# A fatal error has been detected by the Java Runtime Environment:
  the JVM's last words
26/11/22 23:22:55 INFO SparkContext: Running""".splitlines()


def test_of_what_a_jvm_prints_errors_are_shown_and_with_verbosity_the_rest() -> None:
    assert [line for _, line in reported(PRINTED, logging.ERROR)] == PRINTED[7:12]
    assert [line for _, line in reported(PRINTED, logging.WARNING)] == PRINTED[2:12]
    assert [line for _, line in reported(PRINTED, logging.DEBUG)] == PRINTED
