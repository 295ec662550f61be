"""The road for stores with keys only, between processes: two at once, killed anywhere, woken epochs later."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest
from tests.unit.keyed_sink import PATIENCE, PLACES, KeyedSink, commit_and_die, commit_and_stall, commit_at_once

SPAWN = multiprocessing.get_context("spawn")


def test_two_processes_that_commit_at_once_put_every_row_once(tmp_path: Path) -> None:
    sink = KeyedSink(tmp_path)
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c"), (1, "d")])
    barrier, answers = SPAWN.Barrier(2, timeout=PATIENCE), SPAWN.Queue()
    children = [
        SPAWN.Process(target=commit_at_once, args=(sink, 1, votes, barrier, answers), daemon=True) for _ in range(2)
    ]
    for child in children:
        child.start()
    given = [answers.get(timeout=PATIENCE) for _ in children]
    for child in children:
        child.join(PATIENCE)
    assert [child.exitcode for child in children] == [0, 0]
    assert all(set(outcomes) <= {"Committed", "AlreadyCommitted"} for outcomes in given)
    assert sink.log() == ["1 1 a", "1 2 b", "1 3 c", "1 1 d"]
    assert sink.left("") == ["orders.keyed.e1.applied"]


@pytest.mark.parametrize("where", PLACES)
def test_a_process_killed_anywhere_leaves_an_epoch_that_another_finishes(tmp_path: Path, where: str) -> None:
    sink = KeyedSink(tmp_path)
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(1, "c")])
    child = SPAWN.Process(target=commit_and_die, args=(sink, 1, votes, where), daemon=True)
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    unproven = where in ("second row", "proof", "proof's name")
    assert sink.commit(1, votes) == ["Committed" if unproven else "AlreadyCommitted"] * 2
    assert sink.log() == ["1 1 a", "1 2 b", "1 1 c"]
    assert sink.commit(2, sink.vote(2, [(1, "d")])) == ["Committed"]
    assert sink.left("") == ["orders.keyed.e2.applied"]


@pytest.mark.parametrize("where", PLACES)
def test_a_process_stalled_for_epochs_changes_nothing_when_it_wakes(tmp_path: Path, where: str) -> None:
    sink = KeyedSink(tmp_path)
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")])
    stalled, woken, answers = SPAWN.Event(), SPAWN.Event(), SPAWN.Queue()
    child = SPAWN.Process(target=commit_and_stall, args=(sink, 1, votes, where, stalled, woken, answers), daemon=True)
    child.start()
    assert stalled.wait(PATIENCE)
    sink.commit(1, votes, generation=2)
    for epoch, rows in enumerate(([(2, "B")], [(3, "C"), (1, "A")]), start=2):
        assert sink.commit(epoch, sink.vote(epoch, rows, generation=2), generation=2) == ["Committed"]
    before = sink.log()
    woken.set()
    too_late = where in ("second row", "proof's name")  # another's proof was there before its own
    assert answers.get(timeout=PATIENCE) == ["AlreadyCommitted" if too_late else "Committed"] * 2
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert sink.log() == before == ["1 1 a", "1 2 b", "1 3 c", "2 2 B", "3 3 C", "3 1 A"]
    assert sink.rows() == {"1": "A", "2": "B", "3": "C"}
    assert sink.left("") == ["orders.keyed.e3.applied"]
    sink.vote(4, [(1, "next")], generation=2)
