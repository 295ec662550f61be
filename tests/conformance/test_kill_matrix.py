"""The whole kill matrix for files and SQLite in one job: every named point, before and after, killed and stalled.

Real processes, real SIGKILL and SIGSTOP; rows compared one by one.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import pytest

from exactsink.protocol.events import POINTS
from exactsink.testing import Fault, Report, run_scenario
from tests.conformance import sabotage
from tests.conformance.targets import expected, found, make_script

Action = Literal["kill", "stall"]
Edge = Literal["before", "after"]
START = ("claim", "recommit", "sweep")
SINKS = ("lake", "lines", "table")
NAMED = [p for point in POINTS for p in ([f"commit:{s}" for s in SINKS] if point == "commit:<sink>" else [point])]


def _matrix() -> Iterator[list[Fault]]:
    for point in NAMED:
        for edge in get_args(Edge):
            for action in get_args(Action):
                if point in START:  # with an unfinished epoch to find
                    yield [Fault("commit:lines", "before", "kill", 0), Fault(point, edge, action)]
                else:
                    yield [Fault(point, edge, action, 1)]


@pytest.fixture(scope="module")
def players() -> Iterator[ProcessPoolExecutor]:
    """A process without threads, from which lives are forked."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def _play(folder: Path, faults: Sequence[Fault], sabotaged: str | None) -> Report:
    script = make_script(folder)
    if sabotaged is not None:
        script = replace(script, sinks=sabotage.plant(sabotaged, script.sinks))
    return run_scenario(script, faults)


@pytest.mark.parametrize("faults", list(_matrix()), ids=lambda faults: str(faults[-1]))
def test_every_row_is_applied_once(faults: list[Fault], players: ProcessPoolExecutor, tmp_path: Path) -> None:
    report = players.submit(_play, tmp_path, faults, None).result()
    assert report.problems == []
    assert report.in_doubt == dict.fromkeys(SINKS, 0)
    assert found(tmp_path) == dict.fromkeys(SINKS, expected())


@pytest.mark.parametrize(
    ("sabotaged", "fault"),
    [
        ("publishes early", Fault("decide", "before", "kill", 1)),
        ("not idempotent", Fault("commit:lake", "after", "kill", 1)),
        ("swallows commits", Fault("complete", "after", "kill", 1)),
        ("leaves orphans", Fault("vote", "after", "kill", 1)),
    ],
    ids=lambda value: str(value),
)
def test_sabotaged_backend_is_caught(
    sabotaged: str, fault: Fault, players: ProcessPoolExecutor, tmp_path: Path
) -> None:
    report = players.submit(_play, tmp_path, [fault], sabotaged).result()
    right = dict.fromkeys(SINKS, expected())
    assert report.problems or report.in_doubt["lake"] or found(tmp_path) != right


def test_fault_that_never_fired_is_a_problem(players: ProcessPoolExecutor, tmp_path: Path) -> None:
    report = players.submit(_play, tmp_path, [Fault("decide", "before", "kill", 99)], None).result()
    assert any("never fired" in problem for problem in report.problems)
