"""The whole kill matrix with several sinks in one job: every named point, before and after, killed and stalled.

Parquet by kind, JSON lines and an SQLite table; real processes, real SIGKILL and SIGSTOP; every application of a row
counts, not its last state.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest
from _pytest.mark import ParameterSet

from exactsink.protocol.events import POINTS
from exactsink.protocol.sinks import Sink
from exactsink.testing import Fault, Report, Script, run_scenario
from exactsink.testing.scenarios.matrix import Action, Edge
from exactsink_files.conformance import FilesTarget
from exactsink_idempotent_upsert.conformance import TableTarget

START = ("claim", "recommit", "sweep")
TARGETS = {
    "lake": FilesTarget.of("parquet", partition_by=["kind"]),
    "lines": FilesTarget.of("json"),
    "table": TableTarget("staged"),
}
COLUMNS = {"lake": ("id", "kind", "amount"), "lines": ("id", "kind"), "table": ("id", "kind", "amount")}
NAMED = [p for point in POINTS for p in ([f"commit:{s}" for s in TARGETS] if point == "commit:<sink>" else [point])]
BATCHES, PARTITIONS, ROWS = 3, 2, 120


def _matrix() -> Iterator[ParameterSet]:
    """Where a job of one sink stands as one of several does, the kit plays it with every backend; here for proof."""
    for point, edge, action in itertools.product(NAMED, get_args(Edge), get_args(Action)):
        faults = [Fault(point, edge, action, None if point in START else 1)]
        if point in START:  # with an unfinished epoch to find
            faults.insert(0, Fault("commit:lines", "before", "kill", 0))
        several = point.startswith("commit:") or point == "recommit"
        yield pytest.param(faults, id=str(faults[-1]), marks=() if several else pytest.mark.proof)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """A process without threads, from which driver runs are forked."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("faults", list(_matrix()))
def test_every_row_is_applied_once(faults: list[Fault], processes: ProcessPoolExecutor, tmp_path: Path) -> None:
    report, found = processes.submit(_play, tmp_path, faults).result()
    assert report.problems == []
    assert report.in_doubt == dict.fromkeys(TARGETS, 0)
    every = Counter(range(BATCHES * PARTITIONS * ROWS))
    assert found == dict.fromkeys(TARGETS, every)


def _play(folder: Path, faults: Sequence[Fault]) -> tuple[Report, Mapping[str, Counter[int]]]:
    sinks = {}
    for name, target in TARGETS.items():
        (folder / name).mkdir()
        sinks[name] = Sink(name, name, target.backend(folder / name), str(folder / name / "staging"), COLUMNS[name])
    batches = [[_table(batch * PARTITIONS + number) for number in range(PARTITIONS)] for batch in range(BATCHES)]
    report = run_scenario(Script("matrix", folder / "job", sinks, batches), faults)
    return report, {name: target.applied(folder / name) for name, target in TARGETS.items()}


def _table(number: int) -> pa.Table:
    rows = [{"id": number * ROWS + n, "kind": f"k{n % 3}", "amount": n / 4} for n in range(ROWS)]
    return pa.Table.from_pylist(rows)
