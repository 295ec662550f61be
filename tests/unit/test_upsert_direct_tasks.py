"""Tasks of the direct strategy as processes: several at once, one killed in its vote, one with nothing but the rows."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.test_upsert_processes import PATIENCE
from tests.unit.upsert_sink import SCHEMA, Sink, direct, rows_of, task

from exactsink.contract import Txn

SPAWN = multiprocessing.get_context("spawn")


def vote_at_once(sink: Sink, partition: int, barrier: Any, answers: Any) -> None:
    """In a child: hold half of the rows, then vote in step with the others."""
    rows = [(partition * 1000 + n, f"{partition}") for n in range(500)]
    writer = sink.backend.writer(Txn(sink.job, 1, sink.sink, 1, "aa", partition, partition), SCHEMA, b"")
    writer.write(rows_of(*rows))
    barrier.wait()
    answers.put(writer.pre_commit())


def test_tasks_that_vote_at_once_take_turns(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    barrier, answers = SPAWN.Barrier(3, timeout=PATIENCE), SPAWN.Queue()
    children = [SPAWN.Process(target=vote_at_once, args=(sink, n, barrier, answers), daemon=True) for n in range(3)]
    for child in children:
        child.start()
    votes = [answers.get(timeout=PATIENCE) for _ in children]
    for child in children:
        child.join(PATIENCE)
    assert sink.commit(1, votes) == ["Committed"] * 3
    assert sink.rows("SELECT count(*), count(DISTINCT id) FROM log") == [(1500, 1500)]


def vote_and_die(sink: Sink) -> None:
    """In a child: vote, with an SQL function `die()` that kills this process where a trigger calls it."""
    connect = sqlite3.connect

    def connect_deadly(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return connection

    sqlite3.connect = connect_deadly  # type: ignore[assignment]
    task(sink, 1, (1, "a"), (2, "b"), (3, "c")).pre_commit()


def test_a_task_killed_in_its_vote_leaves_nothing(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    sink.sql("CREATE TRIGGER deadly AFTER INSERT ON t WHEN NEW.id = 2 BEGIN SELECT die(); END")
    child = SPAWN.Process(target=vote_and_die, args=(sink,), daemon=True)
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    sink.sql("DROP TRIGGER deadly")
    assert sink.rows() == []
    assert sink.commit(1, sink.vote(1, [(1, "a"), (2, "b")])) == ["Committed"]
    assert sink.log() == [("insert", 1, "a"), ("insert", 2, "b")]


EXECUTOR = """
import pickle, sys
import pyarrow as pa
backend, txn, schema = pickle.loads(sys.stdin.buffer.read())
writer = backend.writer(txn, schema, b"")
writer.write(pa.RecordBatch.from_pylist([{"id": 1, "v": "a", "o": 2}], schema=schema))
print(writer.pre_commit().rows, sorted({"sqlalchemy", "pluggy", "exactsink_files"} & set(sys.modules)))
"""


def test_a_task_needs_no_sqlalchemy(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    given = pickle.dumps((sink.backend, Txn(sink.job, 1, sink.sink, 1, "aa", 0, 0), SCHEMA))
    done = subprocess.run([sys.executable, "-c", EXECUTOR], input=given, capture_output=True, check=True)
    assert done.stdout == b"1 []\n"
    assert sink.rows() == [(1, "a")]
