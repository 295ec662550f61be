"""`exactsink indoubt` on files, SQLite and a real Postgres: drivers are killed, and rows are counted."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from exactsink.cli.main import main
from exactsink.cli.opened import Opened
from exactsink.job.driver import Driver
from exactsink.protocol.coordinator import Batch
from exactsink.protocol.events import Events
from exactsink.protocol.journal.records import Resolve
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing import Fault
from exactsink.testing.driver_run import hashed
from exactsink.testing.faults import FaultTrigger
from exactsink.testing.processes import KILLED, ended, start
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]

JOB = """
[job]
name = "orders"
checkpoint = "{folder}/chk"
[sinks.lake]
backend = "files"
path = "{folder}/lake"
[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/table.db"
table = "rows"
keys = ["id"]
create = true
after = ["lake"]
[sinks.db]
backend = "postgres"
conninfo = "{conninfo}"
table = "rows"
create = true
"""
SINKS = ("lake", "table", "db")


class Shop:
    """A job of three sinks; epoch n has rows 6 n to 6 n + 5, in two partitions."""

    def __init__(self, folder: Path, conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.conninfo, self._capsys = folder, conninfo, capsys
        self.file = folder / "job.toml"
        self.file.write_text(JOB.format(folder=folder, conninfo=conninfo))

    def __call__(self, command: str, *words: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = main(["indoubt", command, str(self.file), *words])
        return code, "".join(self._capsys.readouterr())

    def listed(self, *words: str) -> list[dict[str, Any]]:
        main(["indoubt", "list", str(self.file), "--json", *words])
        return json.loads(self._capsys.readouterr().out)

    def run(self, epochs: Sequence[int], fault: Fault | None = None) -> int:
        trigger = FaultTrigger(fault, self.folder / f"{epochs}.fired") if fault else None
        return ended(start(lambda: self._drive(epochs, trigger)))

    def killed(self, point: str, edge: Any, epoch: int) -> None:
        """Run epochs up to this one, kill its driver there, and let a minute pass."""
        assert self.run(range(epoch + 1), Fault(point, edge, "kill", epoch)) == KILLED
        for path in self.folder.rglob("state.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "heartbeat": time.time() - 61}))

    def _drive(self, epochs: Sequence[int], trigger: FaultTrigger | None) -> int:
        opened = Opened.of(self.file)
        driver = Driver(opened.history, opened.sinks, Events("orders", [trigger] if trigger else []))
        with closing(driver):
            driver.coordinator.start("query", lambda epoch: False)
            for epoch in epochs:
                parts = [pa.table({"id": range(6 * epoch + n, 6 * epoch + n + 3)}) for n in (0, 3)]
                batch = _batch(opened, epoch, parts)
                driver.coordinator.run_epoch(batch)
        return 0

    @contextmanager
    def table_away(self) -> Iterator[None]:
        database, aside = self.folder / "table.db", self.folder / "aside.db"
        database.rename(aside)
        database.mkdir()
        yield
        database.rmdir()
        aside.rename(database)

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            cursor = session.execute(statement.encode())
            return [row[0] for row in cursor.fetchall()] if cursor.description else []

    @property
    def prepared(self) -> list[str]:
        return self.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")

    @property
    def rows(self) -> dict[str, Counter[int]]:
        lake = ds.dataset([str(path) for path in (self.folder / "lake").glob("*.parquet")], format="parquet")
        with closing(sqlite3.connect(self.folder / "table.db")) as connection:
            table = [number for (number,) in connection.execute("SELECT id FROM rows")]
        found = {"lake": lake.to_table()["id"].to_pylist(), "table": table, "db": self.sql("SELECT id FROM rows")}
        return {sink: Counter(rows) for sink, rows in found.items()}


def _batch(opened: Opened, epoch: int, parts: Sequence[pa.Table]) -> Batch:
    previous = f"batch {epoch - 1}" if epoch else ""
    schemas = dict.fromkeys(opened.sinks, parts[0].schema)
    return Batch(epoch, f"batch {epoch}", schemas, lambda plan: _votes(opened, plan, parts), (), previous)


def _votes(opened: Opened, plan: EpochPlan, parts: Sequence[pa.Table]) -> list[Vote]:
    backends = {name: sink.backend for name, sink in opened.sinks.items()}
    votes: list[Vote] = []
    for number, part in enumerate(parts):
        rows = [{name: (batch, hashed(batch)) for name in plan.sinks} for batch in part.to_batches()]
        votes += write_partition(plan, backends, number, number + 1, rows, no_probe)
    return votes


def ids(epochs: int) -> Counter[int]:
    """Every row of the first epochs, once."""
    return Counter(range(6 * epochs))


@pytest.fixture
def shop(tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, postgres.new_database("indoubt"), capsys)


def test_what_is_decided_is_committed_sink_by_sink_after_those_before_it(shop: Shop) -> None:
    shop.killed("decide", "after", 1)
    listed = shop.listed()
    assert Counter((line["sink"], line["state"], line["rows"]) for line in listed) == {
        (sink, "prepared", 3): 2 for sink in SINKS
    }
    before = shop.rows
    assert before == dict.fromkeys(SINKS, ids(1))
    assert shop("commit", "--sink", "db")[0] == 0
    assert (shop.rows, len(shop.prepared)) == (before, 2), "it was only shown"
    with shop.table_away():
        assert shop("commit", "--sink", "db", "--yes")[0] == 0, "another sink is away, and isn't needed"
    assert (shop.rows, shop.prepared) == ({**before, "db": ids(2)}, [])
    assert shop("abort", "--sink", "lake", "--yes")[0] == 2
    assert shop("commit", "--sink", "table", "--yes")[0] == 0
    assert shop.rows == dict.fromkeys(SINKS, ids(2)), "the lake comes before the table"
    assert shop("list") == (0, "nothing is in doubt\n")
    assert shop.run(range(1, 4)) == 0
    assert shop.rows == dict.fromkeys(SINKS, ids(4))


def test_what_is_undecided_is_aborted_and_nothing_else(shop: Shop) -> None:
    shop.killed("vote", "after", 1)
    one, other = shop.prepared
    code, said = shop("commit", one, "--yes")
    assert (code, "is undecided, and is never committed" in said) == (2, True)
    with shop.table_away():
        assert shop("abort", one, "--yes")[0] == 75, "its mark may show that the journal went back"
        assert shop.prepared == [one, other]
    assert shop("abort", one, "--yes")[0] == 0
    assert shop.prepared == [other]
    assert shop("abort", "--sink", "db", "--yes")[0] == 0
    assert (shop.prepared, shop.rows) == ([], dict.fromkeys(SINKS, ids(1)))
    assert {line["sink"] for line in shop.listed()} == {"lake", "table"}
    assert shop.run(range(1, 3)) == 0
    assert shop.rows == dict.fromkeys(SINKS, ids(3))


@pytest.mark.parametrize("all_of_it", [False, True])
def test_exactly_what_is_given_up_is_missing_and_the_job_goes_on(shop: Shop, all_of_it: bool) -> None:
    """The source can't give the batch again: nothing but a person's word gets the job out."""
    shop.killed("decide", "after", 1)
    first, second = shop.prepared
    gone = [first, second] if all_of_it else [second]
    for gid in gone:
        shop.sql(f"ROLLBACK PREPARED '{gid}'")
    code, said = shop("commit", "--sink", "db", "--yes")
    assert (code, "--epoch 1 --sink db --as given-up --reason '...'" in said) == (3, True)
    word = ("--epoch", "1", "--sink", "db", "--reason", "the source has dropped them", "--as")
    assert shop("resolve", *word, "committed", "--yes")[0] == 2, "it is proven lost"
    assert shop("resolve", *word, "given-up")[0] == 0
    code, said = shop("resolve", *word, "given-up", "--yes")
    assert (code, f"{len(gone)} participants with {3 * len(gone)} rows" in said) == (0, True)
    assert [f"{gid}: 3 rows" in said for gid in (first, second)] == [gid in gone for gid in (first, second)]
    with closing(Opened.of(shop.file).history.journal(lambda _: None)) as journal:
        [kept] = [record for record in journal.read().anchors if isinstance(record, Resolve)]
    assert (kept.participants, kept.rows) == (tuple(gone), 3 * len(gone))
    assert shop.run(range(2, 4)) == 0
    missing = Counter(range(6 if all_of_it else 9, 12))
    assert shop.rows == {"lake": ids(4), "table": ids(4), "db": ids(4) - missing}
    assert shop("list") == (0, "nothing is in doubt\n")


def test_what_a_job_left_whose_folder_is_gone_is_ended_by_its_tokens(shop: Shop) -> None:
    shop.killed("decide", "after", 1)
    shutil.rmtree(shop.folder / "chk.exactsink")
    token = shop.prepared[0].split("-")[1].split(".")[0]
    found = [line for line in shop.listed("--no-journal") if line["sink"] == "db"]
    assert {(line["state"], line["token"]) for line in found} == {("foreign", token)}
    words = ("--sink", "db", "--token", token, "--reason", "the disk died", "--take-over", "--yes")
    assert shop("commit", "--sink", "db", "--yes", "--take-over")[0] == 2
    assert shop("abort", *words)[0] == 2, "an empty journal is a wrong path more often than a dead job"
    assert len(shop.prepared) == 2
    assert shop("abort", *words, "--no-journal")[0] == 0
    assert (shop.prepared, shop.rows) == ([], dict.fromkeys(SINKS, ids(1)))
    assert shop("abort", *words, "--no-journal")[0] == 2, "there is a journal now, with the action in it"
