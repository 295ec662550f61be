"""A job of two sinks without Spark: real driver runs into files and a table of SQLite, the one after the other."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.unit.manual_job import offsets_sum, play_checkpoint

from exactsink.cli.opened import Opened
from exactsink.contract import ExactsinkError
from exactsink.job.driver import coordinator_of
from exactsink.observe.state import StateFile
from exactsink.protocol.coordinator import Batch, State
from exactsink.protocol.events import Events
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing.driver_run import hashed

ROWS = pa.table({"id": [1, 2, 3]})


class Shop:
    """Files come after the table, which can be closed: then an epoch is decided and in neither."""

    def __init__(self, folder: Path, journal: str = "", run: str | None = None) -> None:
        self.folder, self.run, self.file = folder, run, str(folder / "job.toml")
        self.database, self.rows_of_a_partition = folder / "shop.db", 3
        Path(self.file).write_text(
            f'[job]\nname = "shop"\ncheckpoint = "{folder}/chk"\n{journal}\n'
            f'[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\nafter = "table"\n'
            f'[sinks.table]\nbackend = "idempotent_upsert"\nurl = "sqlite:///{self.database}"\ntable = "t"\n'
            'keys = ["id"]\ncreate = true\n'
        )

    def edit(self, old: str, new: str) -> None:
        text = Path(self.file).read_text()
        assert old in text
        Path(self.file).write_text(text.replace(old, new))

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute(statement)

    def close_table(self) -> None:
        self.sql("CREATE TRIGGER closed BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'closed'); END")

    def lake_rows(self) -> int:
        """Count the rows that any reader of the lake sees."""
        return sum(pq.read_metadata(path).num_rows for path in (self.folder / "lake").glob("*.parquet"))

    def heartbeat(self, age: float) -> None:
        history = Opened.of(self.file, self.run).history
        state = history.last_state()
        assert state is not None
        history.state().write(replace(state, heartbeat=time.time() - age))

    def epochs(self, *numbers: int) -> None:
        """Run a driver over these batches, until its end or until the store refuses; it is dead then, not ended."""
        opened = Opened.of(self.file, self.run)
        history, attempts = opened.history, iter(range(100))
        history.make()

        def save(state: State) -> None:
            StateFile(history.folder / "state.json").write(replace(state, heartbeat=1000.0))

        def write(plan: EpochPlan) -> Sequence[Vote]:
            backends, votes = {name: opened.sinks[name].backend for name in plan.sinks}, list[Vote]()
            for partition, batch in enumerate(ROWS.to_batches(self.rows_of_a_partition)):
                rows = {name: (batch, hashed(batch)) for name in plan.sinks}
                votes += write_partition(plan, backends, partition, next(attempts), [rows], no_probe)
            return votes

        with closing(history.journal(lambda attempt: None)) as journal, suppress(ExactsinkError):
            coordinator = coordinator_of(history, opened.sinks, journal, Events(history.job, []), save)
            with closing(coordinator):
                coordinator.start("query-1" if self.run is None else f"run {self.run}", lambda epoch: False)
                schemas = dict.fromkeys(opened.sinks, ROWS.schema)
                for number in numbers:
                    play_checkpoint(self.folder / "chk", "query-1", *range(number))
                    ends = (offsets_sum(number), offsets_sum(number - 1))
                    epoch = journal.log.base + number
                    coordinator.run_epoch(Batch(epoch, ends[0], schemas, write, previous=ends[1]))
                    play_checkpoint(self.folder / "chk", "query-1", *range(number + 1))
