"""The upsert backend between processes: two that commit at once, and one that dies with its transaction open."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.upsert_sink import Sink, commit_and_die, commit_and_die_before_answering, commit_at_once, open_at_once

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 120  # seconds until a test that hangs says so


def test_two_processes_that_commit_at_once_apply_the_epoch_once(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(1, "c")])
    answers = sorted(both(commit_at_once, sink, 1, votes))
    assert answers == [["AlreadyCommitted"] * 2, ["Committed"] * 2]
    assert sink.log() == [("insert", 1, "a"), ("insert", 2, "b"), ("update", 1, "c")]
    assert sink.staged_files() == []


def test_two_processes_may_open_the_first_epoch_at_once(tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    assert both(open_at_once, sink) == [str(sink.staging).encode()] * 2
    assert sink.commit(1, sink.vote(1, [(1, "a")])) == ["Committed"]


DEADLY = {
    "the second row": "CREATE TRIGGER deadly AFTER INSERT ON t WHEN NEW.id = 2 BEGIN SELECT die(); END",
    "the marker": "CREATE TRIGGER deadly AFTER INSERT ON exactsink_epochs BEGIN SELECT die(); END",
}


@pytest.mark.parametrize("order_by", [None, "o"])
@pytest.mark.parametrize("where", list(DEADLY))
def test_a_process_killed_in_its_transaction_leaves_nothing(tmp_path: Path, where: str, order_by: str | None) -> None:
    sink = Sink(tmp_path, order_by=order_by).open()
    votes = sink.vote(1, [(1, "a"), (2, "b"), (3, "c")])
    sink.sql(DEADLY[where])
    killed(commit_and_die, sink, 1, votes)
    sink.sql("DROP TRIGGER deadly")
    assert sink.rows() == []
    assert sink.rows("SELECT * FROM exactsink_epochs") == []
    assert sink.commit(1, votes) == ["Committed"]
    assert sink.log() == [("insert", 1, "a"), ("insert", 2, "b"), ("insert", 3, "c")]


def test_a_process_killed_after_its_transaction_has_committed(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "a")])
    killed(commit_and_die_before_answering, sink, 1, votes)
    assert sink.rows() == [(1, "a")]
    assert len(sink.staged_files()) == 1
    assert sink.commit(1, votes) == ["AlreadyCommitted"]
    assert sink.log() == [("insert", 1, "a")]
    assert sink.staged_files() == []


def both(work: Callable[..., None], sink: Sink, *args: Any) -> list[Any]:
    """Run the work in two processes, held at the same barrier; give both answers."""
    barrier, answers = SPAWN.Barrier(2, timeout=PATIENCE), SPAWN.Queue()
    children = [SPAWN.Process(target=work, args=(sink, *args, barrier, answers), daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    given = [answers.get(timeout=PATIENCE) for _ in children]
    for child in children:
        child.join(PATIENCE)
    assert [child.exitcode for child in children] == [0, 0]
    return given


def killed(work: Callable[..., None], *args: Any) -> None:
    """Run the work in a process, and see it killed: a fault that never fired would prove nothing."""
    child = SPAWN.Process(target=work, args=args, daemon=True)
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
