"""The kit on stores as a cluster is: one for all scenarios, and with readers that wait at what is undecided."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from exactsink.contract import Backend
from exactsink.testing import Runner
from tests.conformance.defects_of_commits import OneMarkerForAll
from tests.conformance.defects_of_work import PublishesEarly
from tests.conformance.reference_store import TABLES, ReferenceBackend, ReferenceOptions, ReferenceTarget


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with closing(Runner()) as runner:
        yield runner


@dataclass(frozen=True)
class SharedTarget(ReferenceTarget):
    """One ledger for all scenarios, which know their own rows by where they begin."""

    store: Path = Path()
    names_jobs: bool = True

    def path(self, folder: Path) -> Path:
        return self.store / "store.db"

    def backend(self, folder: Path) -> Backend:
        with closing(sqlite3.connect(self.path(folder))) as connection:
            connection.executescript(TABLES.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            (last,) = connection.execute("SELECT coalesce(max(n), 0) FROM entries").fetchone()
        (folder / "begins").write_text(str(last))
        return ReferenceBackend(ReferenceOptions(path=str(self.path(folder))), self.defect)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        begins = int((folder / "begins").read_text())
        with closing(sqlite3.connect(self.path(folder))) as connection:
            return [[row[0] for row in connection.execute("SELECT id FROM entries WHERE n > ? ORDER BY n", (begins,))]]

    def job_prefix(self, folder: Path) -> str:
        return f"{folder.parent.name}-" if self.names_jobs else ""


@pytest.mark.parametrize("names_jobs", [True, False])
def test_scenarios_meet_in_one_store_when_the_target_names_their_jobs(
    names_jobs: bool, runner: Runner, tmp_path: Path
) -> None:
    target = SharedTarget(store=tmp_path, names_jobs=names_jobs)
    first = runner.play("another-journal", target, tmp_path / "first")  # it leaves another journal's work behind
    others = [runner.play(name, target, tmp_path / name) for name in ("others-untouched", "two-jobs-in-turn")]
    assert first.outcome == "passed", first.why
    assert [result.outcome for result in others] == ["passed" if names_jobs else "failed", "passed"]
    assert names_jobs or "another journal" in others[0].why


class WaitingTarget(ReferenceTarget):
    """Its readers see no row that was begun after one that is undecided."""

    holds_readers = True

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        held = (
            "SELECT value FROM work, json_each(work.ids) WHERE state = 'committed' AND work.rowid >"
            " (SELECT min(rowid) FROM work WHERE state IN ('begun', 'prepared'))"
        )
        with closing(sqlite3.connect(self.path(folder))) as connection:
            return [
                [row[0] for row in connection.execute(f"SELECT id FROM entries WHERE id NOT IN ({held}) ORDER BY n")]
            ]


class SilentTarget(WaitingTarget):
    """The same, which does not say so."""

    holds_readers = False


def test_readers_that_wait_behind_undecided_rows_break_no_promise(runner: Runner, tmp_path: Path) -> None:
    name = "two-jobs-interleaved"
    waiting = runner.play(name, WaitingTarget(), tmp_path / "waiting")
    assert waiting.outcome == "passed", waiting.why
    assert runner.play(name, SilentTarget(), tmp_path / "silent").outcome == "failed"
    for defect in (OneMarkerForAll, PublishesEarly):
        found = runner.play(name, WaitingTarget(defect), tmp_path / defect.__name__)
        assert found.outcome == "failed", f"{defect.__doc__} It was not caught."
