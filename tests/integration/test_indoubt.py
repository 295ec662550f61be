"""`exactsink indoubt` on files, SQLite and a real Postgres: drivers are killed, and rows are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exactsink.cli.opened import Opened
from exactsink.job.driver import Driver
from exactsink.protocol.journal.records import Resolve
from tests.integration.operated_job import OperatedJob, batch_of, ids
from tests.servers.postgres import Postgres

SINKS = ("lake", "table", "db")


class Shop(OperatedJob):
    """The table comes after the lake; the source records nothing as done, and gives epoch `first` next."""

    def __init__(self, folder: Path, conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, conninfo, capsys)
        self.first = 0
        self.edit('keys = ["id"]\n', 'keys = ["id"]\nafter = ["lake"]\n')

    def __call__(self, command: str, *words: str) -> tuple[int, str]:
        """Run `recover`, or a command of `indoubt`."""
        ended = self.exactsink(command if command == "recover" else f"indoubt {command}", *words)
        return ended.code, ended.out + ended.err

    def listed(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.exactsink("indoubt list", "--json", *words).body
        return found

    @contextmanager
    def table_away(self) -> Iterator[None]:
        database, aside = self.folder / "table.db", self.folder / "aside.db"
        database.rename(aside)
        database.mkdir()
        yield
        database.rmdir()
        aside.rename(database)

    def _stream(self, driver: Driver, opened: Opened, batches: int) -> None:
        driver.coordinator.start("query", lambda epoch: False)
        for epoch in range(self.first, batches):
            previous = f"batch {epoch - 1}" if epoch else ""
            driver.coordinator.run_epoch(replace(batch_of(opened, epoch, epoch), previous=previous))


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
    assert before == dict.fromkeys(SINKS, ids(*range(1)))
    assert shop("recover", "--sink", "db")[0] == 0
    assert (shop.rows, len(shop.prepared)) == (before, 2), "it was only shown"
    with shop.table_away():
        assert shop("recover", "--sink", "db", "--yes")[0] == 0, "another sink is away, and isn't needed"
    assert (shop.rows, shop.prepared) == ({**before, "db": ids(*range(2))}, [])
    assert shop("recover", "--sink", "table", "--yes")[0] == 0
    assert shop.rows == dict.fromkeys(SINKS, ids(*range(2))), "the lake comes before the table"
    assert shop("list") == (0, "nothing is in doubt\n")
    shop.first = 1
    assert shop.run(4) == 0
    assert shop.rows == dict.fromkeys(SINKS, ids(*range(4)))


def test_what_is_undecided_is_aborted_and_nothing_else(shop: Shop) -> None:
    shop.killed("vote", "after", 1)
    one, other = shop.prepared
    with shop.table_away():
        assert shop("recover", "--ref", one, "--yes")[0] == 75, "its mark may show that the journal went back"
        assert shop.prepared == [one, other]
    assert shop("recover", "--ref", one, "--yes")[0] == 0
    assert shop.prepared == [other]
    assert shop("recover", "--sink", "db", "--yes")[0] == 0
    assert (shop.prepared, shop.rows) == ([], dict.fromkeys(SINKS, ids(*range(1))))
    assert {line["sink"] for line in shop.listed()} == {"lake", "table"}
    shop.first = 1
    assert shop.run(3) == 0
    assert shop.rows == dict.fromkeys(SINKS, ids(*range(3)))


@pytest.mark.parametrize("all_of_it", [False, True])
def test_exactly_what_is_given_up_is_missing_and_the_job_goes_on(shop: Shop, all_of_it: bool) -> None:
    """The source can't give the batch again: nothing but a person's word gets the job out."""
    shop.killed("decide", "after", 1)
    first, second = shop.prepared
    gone = [first, second] if all_of_it else [second]
    for gid in gone:
        shop.sql(f"ROLLBACK PREPARED '{gid}'")
    code, said = shop("recover", "--sink", "db", "--yes")
    assert (code, "--epoch 1 --sink db --as given-up --reason 'TEXT'" in said) == (3, True)
    word = ("--epoch", "1", "--sink", "db", "--reason", "the source has dropped them", "--as")
    assert shop("resolve", *word, "committed", "--yes")[0] == 2, "it is proven lost"
    assert shop("resolve", *word, "given-up")[0] == 0
    code, said = shop("resolve", *word, "given-up", "--yes")
    assert (code, f"{len(gone)} participants with {3 * len(gone)} rows" in said) == (0, True)
    assert [f"{gid}: 3 rows" in said for gid in (first, second)] == [gid in gone for gid in (first, second)]
    with closing(Opened.of(shop.file).history.journal(lambda _: None)) as journal:
        [kept] = [record for record in journal.read().anchors if isinstance(record, Resolve)]
    assert (kept.participants, kept.rows) == (tuple(gone), 3 * len(gone))
    shop.first = 2
    assert shop.run(4) == 0
    missing = Counter(range(6 if all_of_it else 9, 12))
    assert shop.rows == {"lake": ids(*range(4)), "table": ids(*range(4)), "db": ids(*range(4)) - missing}
    assert shop("list") == (0, "nothing is in doubt\n")
