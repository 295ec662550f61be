"""Drive the upsert backend through its public contract, and look at the table from outside. Children run it too."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Committable, Committer, JobContext, Marker, Outcome, Txn, Writer
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.strategies import SqliteApplier

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("o", pa.int64())])

LOG_EVERY_APPLICATION = """
    CREATE TABLE log (n INTEGER PRIMARY KEY, what TEXT, id, v);
    CREATE TRIGGER inserted AFTER INSERT ON t BEGIN INSERT INTO log (what, id, v) VALUES ('insert', NEW.id, NEW.v); END;
    CREATE TRIGGER updated AFTER UPDATE ON t BEGIN INSERT INTO log (what, id, v) VALUES ('update', NEW.id, NEW.v); END;
"""


class Sink:
    """One sink of a job, its table t in a file, and a log of everything that was ever applied to the table."""

    def __init__(
        self, folder: Path, job: str = "orders", sink: str = "table", lineage: str = "L1", **options: Any
    ) -> None:
        self.file = folder / "shop.db"
        self.staging = folder / "staging" / job / sink
        self.job = job
        self.sink = sink
        self.lineage = lineage
        given = {"url": f"sqlite:///{self.file}", "table": "t", "keys": ("id",), "create": True, **options}
        self.backend = UpsertBackend(UpsertOptions.model_validate(given))

    def committer(self, generation: int = 1) -> Committer:
        staging = str(self.staging)
        return self.backend.committer(JobContext(self.job, self.sink, staging, generation, self.lineage))

    def open(self, schema: pa.Schema = SCHEMA, log: bool = True) -> Sink:
        """Make the table as the first epoch does, and log what happens to it from then on."""
        self.committer().open_epoch(1, schema, None)
        if log:
            self.sql(LOG_EVERY_APPLICATION)
        return self

    def vote(
        self, epoch: int, *partitions: Sequence[pa.RecordBatch | Sequence[Any]], generation: int = 1
    ) -> list[Committable]:
        """Write and pre-commit one participant per partition; rows are tuples of SCHEMA, or whole batches."""
        ticket = self.committer(generation).open_epoch(epoch, _schema(partitions), None)
        votes = []
        for partition, rows in enumerate(partitions):
            txn = Txn(self.job, epoch, self.sink, generation, "aa", partition, attempt=100 * epoch + partition)
            writer = self.backend.writer(txn, _schema(partitions), ticket)
            for batch in _batches(rows):
                writer.write(batch)
            votes.append(writer.pre_commit())
        return votes

    def commit(self, epoch: int, votes: Sequence[Committable], generation: int = 1) -> list[str]:
        """Commit, and name the outcomes."""
        return [type(outcome).__name__ for outcome in self.outcomes(epoch, votes, generation)]

    def outcomes(self, epoch: int, votes: Sequence[Committable], generation: int = 1) -> Sequence[Outcome]:
        committer = self.committer(generation)
        try:
            return committer.commit(epoch, votes)
        finally:
            committer.close()

    def sql(self, statements: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            connection.executescript(statements)

    def rows(self, query: str = "SELECT id, v FROM t ORDER BY id") -> list[Any]:
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(query).fetchall()

    def log(self) -> list[Any]:
        return self.rows("SELECT what, id, v FROM log ORDER BY n")

    def staged_files(self) -> list[str]:
        return sorted(path.name for path in self.staging.iterdir())


def direct(folder: Path, **options: Any) -> Sink:
    return Sink(folder, strategy="direct", **options)


def rows_of(*rows: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, (*row, None)[:3], strict=True)) for row in rows], schema=SCHEMA
    )


def task(sink: Sink, epoch: int, *rows: Sequence[Any], generation: int = 1, attempt: int = 0) -> Writer:
    """One task that has taken its rows, and has not yet voted."""
    writer = sink.backend.writer(Txn(sink.job, epoch, sink.sink, generation, "aa", 0, attempt), SCHEMA, b"")
    for row in rows:
        writer.write(rows_of(row))
    return writer


def commit_at_once(sink: Sink, epoch: int, votes: Sequence[Committable], barrier: Any, answers: Any) -> None:
    """In a child: commit in step with the other: both find the epoch unapplied, then both apply, then both clean up."""
    apply = SqliteApplier.apply

    def wait_then_apply(self: SqliteApplier, marker: Marker, batches: Iterator[Any]) -> bool:
        barrier.wait()
        try:
            return apply(self, marker, batches)
        finally:
            barrier.wait()

    SqliteApplier.apply = wait_then_apply  # type: ignore[method-assign]
    answers.put(sink.commit(epoch, votes))


def open_at_once(sink: Sink, barrier: Any, answers: Any) -> None:
    """In a child: open the first epoch in step with the other: both find no tables, then both make them."""
    connect = sqlite3.connect

    def wait_then_connect(database: str, **kwargs: Any) -> sqlite3.Connection:
        if database.endswith("mode=rwc"):
            barrier.wait()
        connection: sqlite3.Connection = connect(database, **kwargs)
        return connection

    sqlite3.connect = wait_then_connect  # type: ignore[assignment]
    answers.put(sink.committer().open_epoch(1, SCHEMA, None))


def commit_and_die(sink: Sink, epoch: int, votes: Sequence[Committable]) -> None:
    """In a child: commit, with an SQL function `die()` that kills this process where a trigger calls it."""
    connect = sqlite3.connect

    def connect_deadly(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.create_function("die", 0, _die)
        return connection

    sqlite3.connect = connect_deadly  # type: ignore[assignment]
    sink.commit(epoch, votes)


def commit_and_die_before_answering(sink: Sink, epoch: int, votes: Sequence[Committable]) -> None:
    """In a child: die after the transaction, before anyone hears of it."""
    apply = SqliteApplier.apply

    def apply_then_die(self: SqliteApplier, marker: Marker, batches: Iterator[Any]) -> bool:
        apply(self, marker, batches)
        return _die()

    SqliteApplier.apply = apply_then_die  # type: ignore[method-assign]
    sink.commit(epoch, votes)


def _die() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return False


def _schema(partitions: Sequence[Sequence[Any]]) -> pa.Schema:
    first = partitions[0][0]
    return first.schema if isinstance(first, pa.RecordBatch) else SCHEMA


def _batches(rows: Sequence[Any]) -> list[pa.RecordBatch]:
    if isinstance(rows[0], pa.RecordBatch):
        return list(rows)
    padded = [(*row, None)[:3] for row in rows]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*padded, strict=True), SCHEMA, strict=True)]
    return [pa.RecordBatch.from_arrays(columns, schema=SCHEMA)]


def commits_seen(patch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Look at every connection in the moment of its COMMIT: (journal_mode, synchronous), 2 being FULL and 3 EXTRA."""
    seen: list[list[Any]] = []

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql == "COMMIT":
                seen.append([self.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")])
            return super().execute(sql, parameters)

    connect = sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Watched, **kwargs))
    return seen
