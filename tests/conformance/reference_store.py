"""A small reference store with every capability: an SQLite file that knows prepared, lost and committed work.

It shows an epoch at one moment, drops prepared work on request (as a timeout would), and keeps the order of rows.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Backend,
    BackendOptions,
    BatchValidator,
    Committable,
    Committed,
    Committer,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Traits,
    Txn,
    Undecided,
    Unknown,
    Validator,
    Writer,
)
from exactsink.testing import ConformanceTarget

__all__ = ["Defect", "ReferenceBackend", "ReferenceCommitter", "ReferenceOptions", "ReferenceTarget", "ReferenceWriter"]
__all__ += ["NotingCommitter", "transaction"]

TABLES = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE work (name TEXT PRIMARY KEY, state TEXT, ids TEXT);
    CREATE TABLE entries (n INTEGER PRIMARY KEY, id INTEGER);
    CREATE TABLE marks (job, sink, epoch, ref, lineage, token, PRIMARY KEY (job, sink, epoch, ref));
"""
FOREIGN = "somebody's own"


class ReferenceOptions(BackendOptions):
    path: str
    timeout_seconds: float = 3600


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """Hold the store's write lock. Not synced: no power cut is played here."""
    with closing(sqlite3.connect(path, timeout=0.05, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise Retryable(f"the store is busy: {error}") from error


class ReferenceWriter(Writer):
    def __init__(self, path: str, txn: Txn, timeout: float) -> None:
        self.path = path
        self.txn = txn
        self.timeout = timeout
        self.ids: list[int] = []
        with transaction(path) as connection:
            connection.execute("INSERT INTO work VALUES (?, 'begun', NULL)", (txn.id,))

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.column("kind").null_count:
            raise Fatal("a row has no kind")
        self.ids += batch.column("id").to_pylist()

    def pre_commit(self) -> Committable:
        with transaction(self.path) as connection:
            prepare = "UPDATE work SET state = 'prepared', ids = ? WHERE name = ? AND state = 'begun'"
            if connection.execute(prepare, (json.dumps(self.ids), self.txn.id)).rowcount != 1:
                raise Retryable(f"{self.txn.id} was swept")
        payload = json.dumps({"name": self.txn.id}).encode()
        return Committable(self.txn, len(self.ids), payload, version=2, deadline=time.time() + self.timeout)

    def abort(self) -> None:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM work WHERE name = ?", (self.txn.id,))


class ReferenceCommitter(Committer):
    writer_type: ClassVar[type[ReferenceWriter]] = ReferenceWriter

    def __init__(self, path: str, ctx: JobContext) -> None:
        self.path = path
        self.ctx = ctx

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        return []

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return b""

    def row_rules(self, schema: pa.Schema) -> bytes:
        """Return which column takes no NULL."""
        return b"kind"

    def name(self, committable: Committable) -> str:
        """Read the payload: version 1 was the bare name."""
        if committable.version == 1:
            return committable.payload.decode()
        name: str = json.loads(committable.payload)["name"]
        return name

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        with transaction(self.path) as connection:
            return [self.resolve(connection, self.name(committable)) for committable in committables]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        return [self.standing(self.name(committable)) for committable in committables]

    def standing(self, name: str) -> Standing:
        found = self.state(name)
        if found == "committed":
            return AlreadyCommitted()
        if found == "lost":
            return Lost(f"the store dropped {name} at its deadline")
        return Prepared() if found == "prepared" else Unknown(f"the store does not know {name}")

    def state(self, name: str) -> str | None:
        with closing(sqlite3.connect(self.path)) as connection:
            row = connection.execute("SELECT state FROM work WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def resolve(self, connection: sqlite3.Connection, name: str) -> Outcome:
        found = connection.execute("SELECT state, ids FROM work WHERE name = ?", (name,)).fetchone()
        if found is None:
            return Unknown(f"the store does not know {name}")
        if found[0] == "committed":
            return AlreadyCommitted()
        if found[0] == "lost":
            return Lost(f"the store dropped {name} at its deadline")
        if found[0] != "prepared":
            raise Fatal(f"{name} is {found[0]}")
        self.enter(connection, found[1])
        connection.execute("UPDATE work SET state = 'committed' WHERE name = ?", (name,))
        self.set_mark(connection, name)
        return Committed()

    def set_mark(self, connection: sqlite3.Connection, name: str) -> None:
        txn = Txn.parse(name)
        assert txn is not None
        row = (txn.job, txn.sink, txn.epoch, name, self.ctx.lineage, txn.token)
        connection.execute("INSERT OR IGNORE INTO marks VALUES (?, ?, ?, ?, ?, ?)", row)

    def mark(self) -> Mark | None:
        query = "SELECT epoch, lineage, token FROM marks WHERE job = ? AND sink = ? ORDER BY epoch"
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(query, (self.ctx.job, self.ctx.sink)).fetchall()
        if not rows or rows[-1][0] < 0:
            return Mark(rows[-1][1]) if rows else None
        tokens = [token for epoch, _, token in rows if epoch == rows[-1][0]]
        return Mark(rows[-1][1], rows[-1][0], frozenset(tokens), len(tokens))

    def put_birth(self) -> Mark:
        job, sink, lineage = self.ctx.job, self.ctx.sink, self.ctx.lineage
        with transaction(self.path) as connection:
            free = "WHERE NOT EXISTS (SELECT 1 FROM marks WHERE job = ? AND sink = ?)"
            connection.execute(f"INSERT INTO marks SELECT ?, ?, -1, '', ?, '' {free}", (job, sink, lineage, job, sink))
        mark = self.mark()
        assert mark is not None
        return mark

    def trim_marks(self) -> None:
        keys = (self.ctx.job, self.ctx.sink)
        last = "(SELECT max(epoch) FROM marks WHERE job = ? AND sink = ?)"
        with transaction(self.path) as connection:
            connection.execute(f"DELETE FROM marks WHERE job = ? AND sink = ? AND epoch < {last}", keys * 2)

    def enter(self, connection: sqlite3.Connection, ids: str) -> None:
        connection.executemany("INSERT INTO entries (id) VALUES (?)", ((row,) for row in json.loads(ids)))

    def abort(self, undecided: Undecided) -> None:
        with transaction(self.path) as connection:
            for participant in undecided:
                connection.execute(
                    "DELETE FROM work WHERE name = ? AND state IN ('begun', 'prepared')", (participant.ref,)
                )

    def names(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("SELECT name FROM work WHERE state IN ('begun', 'prepared')").fetchall()
        return [row[0] for row in rows]

    def in_doubt(self) -> Iterable[InDoubt]:
        for name in self.names():
            txn = Txn.parse(name)
            if txn is not None and (txn.job, txn.sink) == (self.ctx.job, self.ctx.sink):
                yield InDoubt.of(txn)

    def close(self) -> None:
        """Hold nothing."""


class NotingCommitter(ReferenceCommitter):
    """A committer that keeps notes in the store, under names of its own: for the defects."""

    def note(self, name: str) -> int | None:
        with transaction(self.path) as connection:
            found = connection.execute("SELECT ids FROM work WHERE name = ?", (name,)).fetchone()
        return int(found[0]) if found else None

    def take_note(self, name: str, number: int) -> None:
        with transaction(self.path) as connection:
            connection.execute("INSERT OR REPLACE INTO work VALUES (?, 'note', ?)", (name, str(number)))

    def drop_note(self, name: str) -> None:
        with transaction(self.path) as connection:
            connection.execute("DELETE FROM work WHERE name = ?", (name,))


Defect: TypeAlias = "type[ReferenceWriter | ReferenceCommitter]"


class ReferenceBackend(Backend):
    Options = ReferenceOptions
    options: ReferenceOptions

    def __init__(self, options: ReferenceOptions, defect: Defect | None = None, marks: bool = True) -> None:
        super().__init__(options)
        self._marks = marks
        writes = defect is not None and issubclass(defect, ReferenceWriter)
        self._committer: type[ReferenceCommitter] = ReferenceCommitter if defect is None or writes else defect  # type: ignore[assignment]
        self._writer: type[ReferenceWriter] = defect if writes else self._committer.writer_type  # type: ignore[assignment]

    @property
    def strategy(self) -> str:
        return "reference"

    @property
    def target(self) -> str:
        return f"reference:{self.options.path}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=True, can_lose_votes=True, marks=self._marks, validates_rows=True)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        column, _, why = rules.decode().partition(" ")

        def check(batch: pa.RecordBatch) -> str | None:
            return f"no {column} {why}" if batch.column(column).null_count else None

        return BatchValidator(check, schema)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return self._writer(self.options.path, txn, self.options.timeout_seconds)

    def committer(self, ctx: JobContext) -> Committer:
        return self._committer(self.options.path, ctx)


@dataclass(frozen=True)
class ReferenceTarget(ConformanceTarget):
    """The store for the kit, with every hook; its writers or its committers can be ones with a defect.

    Without `marks` the core compares nothing: what a stalled driver may not do is up to the store alone.
    """

    defect: Defect | None = None
    marks: bool = True

    def path(self, folder: Path) -> Path:
        return folder / "store.db"

    def backend(self, folder: Path) -> Backend:
        with closing(sqlite3.connect(self.path(folder))) as connection:
            connection.executescript(TABLES)
        return ReferenceBackend(ReferenceOptions(path=str(self.path(folder))), self.defect, self.marks)

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(row for ids in self.order(folder) for row in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        with closing(sqlite3.connect(self.path(folder))) as connection:
            return [[row[0] for row in connection.execute("SELECT id FROM entries ORDER BY n")]]

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        self._run(folder, "UPDATE work SET state = 'lost', ids = NULL WHERE name = ?", [c.ref for c in committables])

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        for table, column in (("work", "name"), ("marks", "ref")):
            self._run(folder, f"DELETE FROM {table} WHERE {column} = ?", [c.ref for c in committables])

    def foreign(self, folder: Path) -> None:
        self._run(folder, "INSERT INTO work VALUES (?, 'prepared', '[1]')", [FOREIGN])

    def foreign_stands(self, folder: Path) -> bool:
        with closing(sqlite3.connect(self.path(folder))) as connection:
            found = connection.execute("SELECT state, ids FROM work WHERE name = ?", (FOREIGN,)).fetchall()
        return found == [("prepared", "[1]")]

    def previous(self, folder: Path) -> Sequence[Committable]:
        """Version 1's payload was the bare name."""
        txns = [Txn("kit", 0, "out", 1, "ab12", partition, 1 + partition) for partition in range(2)]
        for txn in txns:
            ids = json.dumps([txn.partition * 3 + n for n in range(3)])
            self._run(folder, f"INSERT INTO work VALUES (?, 'prepared', '{ids}')", [txn.id])
        return [Committable(txn, 3, txn.id.encode(), version=1) for txn in txns]

    def unfit(self, rows: pa.Table) -> pa.Table:
        return rows.set_column(1, "kind", pa.nulls(rows.num_rows, pa.string()))

    def _run(self, folder: Path, statement: str, names: Sequence[str]) -> None:
        with transaction(str(self.path(folder))) as connection:
            connection.executemany(statement, [(name,) for name in names])
