"""A job of three sinks without Spark: real driver, journal and targets; what an operator's commands are tried on.

Batch n has two partitions of three rows. Spark's part is played: its checkpoint's files, and the tasks.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from exactsink.cli.main import main
from exactsink.cli.opened import Opened
from exactsink.contract import Backend, ExactsinkError
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.driver import Driver
from exactsink.protocol.coordinator import Batch
from exactsink.protocol.events import Events
from exactsink.protocol.journal.records import Complete
from exactsink.protocol.participant import Probe, no_probe, write_partition
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing import Fault
from exactsink.testing.driver_run import hashed
from exactsink.testing.faults import FaultTrigger
from exactsink.testing.processes import KILLED, ended, start
from tests.unit.conftest import Ended

PARTITIONS, ROWS = 2, 3
_SINKS = """
[sinks.lake]
backend = "files"
path = "{folder}/lake"

[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/table.db"
table = "rows"
keys = ["id"]
create = true

[sinks.db]
backend = "postgres"
conninfo = "{conninfo}"
table = "rows"
create = true
"""


def ids(*batches: int) -> Counter[int]:
    """Every row of these batches, once."""
    return Counter(batch * PARTITIONS * ROWS + n for batch in batches for n in range(PARTITIONS * ROWS))


class OperatedJob:
    """The job, its driver runs, an operator's commands, and what any reader sees in its sinks."""

    def __init__(self, folder: Path, conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.conninfo = conninfo
        self.checkpoint = folder / "chk"
        self.history = folder / "chk.exactsink"
        self.file = folder / "job.toml"
        self._capsys = capsys
        self._marks = 0
        head = f'[job]\nname = "orders"\ncheckpoint = "{self.checkpoint}"\n'
        self.file.write_text(head + _SINKS.format(folder=folder, conninfo=conninfo))

    def exactsink(self, name: str, *arguments: str) -> Ended:
        """Run a command on the job."""
        self._capsys.readouterr()
        return Ended(main([*name.split(), str(self.file), *arguments]), *self._capsys.readouterr())

    def run(self, batches: int, fault: Fault | None = None, *, run: str | None = None) -> int:
        """Be `exactsink run` over a source of so many batches, in a process of its own; return its exit code.

        A batch run, `run`, is of the batch of that number.
        """
        return ended(self.started(batches, fault, run=run))

    def started(self, batches: int, fault: Fault | None = None, *, run: str | None = None) -> int:
        """Start that process; return its id."""
        self._marks += 1
        trigger = FaultTrigger(fault, self.folder / f"{self._marks}.fired") if fault else None
        return start(lambda: self._drive(batches, trigger, run))

    def refused(self) -> int:
        """Be a driver that is refused, in this process; return its exit code."""
        return self._drive(0, None, None)

    def killed(self, point: str, edge: str, epoch: int, *, run: str | None = None) -> None:
        """Run a driver that is killed there; a minute later nobody takes it for alive. A batch run writes batch 9."""
        batches = epoch + 2 if run is None else 9
        assert self.run(batches, Fault(point, edge, "kill", epoch), run=run) == KILLED  # type: ignore[arg-type]
        for path in self.history.rglob("state.json"):
            state = json.loads(path.read_text())
            path.write_text(json.dumps({**state, "heartbeat": time.time() - 61}))

    def edit(self, old: str, new: str) -> None:
        """Change the job's file."""
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Ask the sink db's database."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def prepared(self) -> list[str]:
        """What stands prepared in the sink db's database."""
        found = self.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")
        return [str(gid) for (gid,) in found]

    @property
    def rows(self) -> Mapping[str, Counter[int]]:
        """How often a reader finds each row, by sink."""
        lake = ds.dataset([str(path) for path in (self.folder / "lake").glob("*.parquet")], format="parquet")
        with closing(sqlite3.connect(self.folder / "table.db")) as connection:
            table = [number for (number,) in connection.execute("SELECT id FROM rows")]
        db = [number for (number,) in self.sql("SELECT id FROM rows")]
        return {"lake": Counter(lake.to_table()["id"].to_pylist()), "table": Counter(table), "db": Counter(db)}

    def done(self, batches: int) -> None:
        """Let the checkpoint say, as Spark's does, that so many batches are done, and no more."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        for name in ("commits", "offsets"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id": "query-1"}')
        for number in range(batches):
            self._offsets(number)
            (self.checkpoint / "commits" / str(number)).touch()

    def _offsets(self, number: int) -> None:
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}\n")

    def _drive(self, batches: int, trigger: FaultTrigger | None, run: str | None) -> int:
        try:
            opened = Opened.of(self.file, run)
            driver = Driver(opened.history, opened.sinks, Events(opened.history.job, [trigger] if trigger else []))
            with closing(driver):
                play = self._stream if run is None else _batch_run
                play(driver, opened, batches)
            return 0
        except ExactsinkError as error:
            print(f"driver run {os.getpid()} ended: {error}", flush=True)
            return error.exit_code

    def _stream(self, driver: Driver, opened: Opened, batches: int) -> None:
        if not self.checkpoint.exists():
            self.done(0)
        checkpoint, journal = Checkpoint(opened.config.checkpoint), driver.journal
        driver.coordinator.start("query-1", lambda epoch: checkpoint.is_epoch_done(epoch, journal.log))
        for number in range(checkpoint.next_batch(), batches):
            self._offsets(number)
            batch = batch_of(opened, journal.log.base + number, number)
            previous = checkpoint.previous(number)
            driver.coordinator.run_epoch(replace(batch, fingerprint=checkpoint.fingerprint(number), previous=previous))
            (self.checkpoint / "commits" / str(number)).touch()
            driver.coordinator.returned(batch.epoch)


def _batch_run(driver: Driver, opened: Opened, number: int) -> None:
    journal = driver.journal
    driver.coordinator.start(f"run {opened.history.run}", lambda epoch: journal.log.is_complete)
    if not journal.log.is_complete:
        result = driver.coordinator.run_epoch(batch_of(opened, journal.log.base, number))
        journal.keep(Complete(result.epoch))


def batch_of(opened: Opened, epoch: int, number: int) -> Batch:
    """Return the batch of that number, as this epoch."""
    first = number * PARTITIONS * ROWS
    parts = [pa.table({"id": range(first + p * ROWS, first + (p + 1) * ROWS)}) for p in range(PARTITIONS)]
    backends = {name: sink.backend for name, sink in opened.sinks.items()}
    schemas = dict.fromkeys(opened.sinks, parts[0].schema)
    return Batch(epoch, f"batch {number}", schemas, lambda plan: votes_of(plan, backends, parts, no_probe))


def votes_of(plan: EpochPlan, backends: Mapping[str, Backend], parts: Sequence[pa.Table], probe: Probe) -> list[Vote]:
    """Write each part as a task does."""
    votes: list[Vote] = []
    for number, part in enumerate(parts):
        rows = [{name: (batch, hashed(batch)) for name in plan.sinks} for batch in part.to_batches()]
        votes += write_partition(plan, backends, number, number + 1, rows, probe)
    return votes
