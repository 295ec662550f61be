"""The kit on a store whose readers wait at what is undecided, as in a Kafka partition."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from exactsink.testing import Runner
from tests.conformance.defects_of_commits import OneMarkerForAll
from tests.conformance.defects_of_work import PublishesEarly
from tests.conformance.reference_store import ReferenceTarget


class WaitingTarget(ReferenceTarget):
    """Its readers see no row that was begun after one that is undecided."""

    holds_readers = True

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        held = (
            "SELECT value FROM work, json_each(work.ids) WHERE state = 'committed' AND work.rowid >"
            " (SELECT min(rowid) FROM work WHERE state IN ('begun', 'prepared'))"
        )
        with closing(sqlite3.connect(self.path(folder))) as store:
            return [[row[0] for row in store.execute(f"SELECT id FROM entries WHERE id NOT IN ({held}) ORDER BY n")]]


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
