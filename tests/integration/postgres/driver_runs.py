"""Driver runs on a real server, each in a process of its own, and what is done to the server at their steps."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Event
from exactsink.protocol.sinks import Sink
from exactsink.testing import Script
from exactsink.testing.driver_run import run_driver
from exactsink.testing.faults import Trigger
from exactsink.testing.processes import ended, start
from exactsink_postgres.server import Session
from tests.integration.postgres.sinks import ROWS, Staged


def script_of(conninfo: str, folder: Path, count: int, **tables: str) -> Script:
    """Return a job whose batch n has the rows 20 n to 20 n + 19; `tables` says for each strategy into which table."""
    folder.mkdir(exist_ok=True)
    job = folder.name.replace("_", "-")[:30].lower()
    sinks = {}
    for strategy, table in tables.items():
        name = strategy.replace("_", "-")
        sink = replace(Staged(conninfo, job, name), given=(("strategy", strategy), ("table", table)))
        sinks[name] = Sink(name, "postgres", sink.backend, "")
    return Script(job, folder, sinks, _batches(count))


def _batches(count: int) -> Sequence[Sequence[pa.Table]]:
    ids = [range(20 * n, 20 * n + 20) for n in range(count)]
    return [[_table(part) for part in (of[:10], of[10:])] for of in ids]


def _table(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": list(ids), "kind": [f"k{n}" for n in ids]}, schema=ROWS)


def up_to(script: Script, count: int) -> Script:
    return replace(script, batches=script.batches[:count])


def said(script: Script) -> str:
    """Return what the last driver run has printed."""
    return (script.folder / "log").read_text()


def counted(conninfo: str, table: str = "t") -> Counter[int]:
    with psycopg.connect(conninfo) as session:
        return Counter(itertools.chain.from_iterable(session.execute(f"SELECT id FROM {table}".encode()).fetchall()))


class Runs:
    """Plays driver runs, each in a process of its own, forked from one that has no threads."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def __call__(self, script: Script, trigger: Trigger | None = None) -> int:
        """Return the exit code of a driver run."""
        return self._pool.submit(_play, script, trigger).result()

    def close(self) -> None:
        self._pool.shutdown()


def _play(script: Script, trigger: Trigger | None) -> int:
    return ended(start(lambda: _drive(script, trigger)))


def _drive(script: Script, trigger: Trigger | None) -> int:
    with open(script.folder / "log", "wb") as log:
        os.dup2(log.fileno(), 1)
    if isinstance(trigger, Step):
        trigger.count_trips()
    return run_driver(script, trigger)


@dataclass(frozen=True)
class Step:
    """Does something once in a driver run or its participants: where an edge is reached that holds this `place`.

    Or, if `trips` are given, before so many round trips to the server after it. `record` is a file that all its
    processes share; it must not exist.
    """

    act: Callable[[], object]
    record: Path
    place: str = "before claim"
    epoch: int | None = None
    trips: int = 0

    @property
    def fired(self) -> str:
        """The edge that was reached last when it was done; empty when it was not."""
        done = self.record.with_suffix(".done")
        return done.read_text() if done.exists() else ""

    def __call__(self, event: Event) -> None:
        if event.edge:
            self.probe(event.name, event.edge, event.epoch)

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        edge = f"{edge} {point}"
        begun = self.record.exists()
        if begun or (edge == self.place and self.epoch in (None, epoch)):
            self._write(f"\n{edge}")
        if not begun and self.trips == 0 and self.record.exists():
            self._fire()

    def count_trips(self) -> None:
        """Count this process's round trips and those of its forks."""
        plain = Session.wait

        def wait(session: Session, *given: Any, **how: Any) -> Any:
            if self.record.exists() and self.trips and not self.fired:
                self._write(".")
                if self.record.read_text().count(".") == self.trips:
                    self._fire()
            return plain(session, *given, **how)

        Session.wait = wait  # type: ignore[method-assign, assignment]

    def _write(self, text: str) -> None:
        with open(self.record, "a") as record:
            record.write(text)

    def _fire(self) -> None:
        self.record.with_suffix(".done").write_text(self.record.read_text().splitlines()[-1].strip("."))
        self.act()
