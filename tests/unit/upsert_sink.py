"""A session of an upsert sink into table t of a SQLite file, and a look at that table from outside."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Committable, Finding, JobContext, Outcome
from exactsink.testing import Session
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("o", pa.int64())])
Rows = pa.Table | pa.RecordBatch | Sequence[Sequence[Any]]

LOG_EVERY_APPLICATION = """
    CREATE TABLE log (n INTEGER PRIMARY KEY, what TEXT, id, v);
    CREATE TRIGGER inserted AFTER INSERT ON t BEGIN INSERT INTO log (what, id, v) VALUES ('insert', NEW.id, NEW.v); END;
    CREATE TRIGGER updated AFTER UPDATE ON t BEGIN INSERT INTO log (what, id, v) VALUES ('update', NEW.id, NEW.v); END;
"""


class Sink(Session):
    """A session of sink `table` of job `orders`, unless it is another's."""

    backend: UpsertBackend

    @property
    def file(self) -> Path:
        return self.backend.options.path

    def at(self, generation: int) -> Sink:
        """Return the session of a later claim."""
        return replace(self, ctx=replace(self.ctx, generation=generation))

    def logged(self, schema: pa.Schema = SCHEMA) -> Sink:
        """Make the table as the first epoch does, and log everything that is applied to it from then on."""
        self.open(1, schema)
        self.sql(LOG_EVERY_APPLICATION)
        return self

    def vote(self, epoch: int, *partitions: Rows) -> list[Committable]:
        return self.prepare(epoch, [rows_of(partition) for partition in partitions])

    def run(self, epoch: int, *partitions: Rows) -> list[Outcome]:
        return self.commit(epoch, self.vote(epoch, *partitions))

    def check(self, schema: pa.Schema = SCHEMA, participants: int | None = None) -> list[Finding]:
        return list(self.backend.committer(self.ctx).check(schema, participants))

    def sql(self, statements: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            connection.executescript(statements)

    def rows(self, query: str = "SELECT id, v FROM t ORDER BY id") -> list[Any]:
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(query).fetchall()

    def log(self) -> list[Any]:
        return self.rows("SELECT what, id, v FROM log ORDER BY n")

    def staged(self) -> list[Path]:
        return sorted(Path(self.ctx.staging).iterdir())


def upsert(folder: Path, job: str = "orders", sink: str = "table", lineage: str = "L1", **options: Any) -> Sink:
    given = {"url": f"sqlite:///{folder / 'shop.db'}", "table": "t", "keys": ("id",), "create": True, **options}
    ctx = JobContext(job, sink, str(folder / "staging" / job / sink), 1, lineage)
    return Sink(UpsertBackend(UpsertOptions.model_validate(given)), ctx, "aa")


def rows_of(given: Rows) -> pa.Table:
    """Make a table of a batch, or of tuples of SCHEMA that may be shorter."""
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        return given
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=False)) for row in given], schema=SCHEMA)


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
