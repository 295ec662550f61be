"""One process and a PostgreSQL server: loading, preparing and committing, without Spark."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder

from benchmarks.cases.postgres_server import Served, serving
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from exactsink.contract import Committable, Committed, JobContext, Txn
from exactsink_postgres.committer import list_prepared
from exactsink_postgres.load import LoadingWriter

__all__ = ["COMMIT", "LOAD", "PREPARE"]

_TABLE = "loaded"
_COLUMNS = "id bigint, amount float8, moment timestamptz, name text, text text"
_AS_TEXT = "texts", _COLUMNS.replace("name text", "name refcursor")  # the server reads it as it reads text
_SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "amount": pa.float64(),
        "moment": pa.timestamp("us", "UTC"),
        "name": pa.string(),
        "text": pa.string(),
    }
)
_A_BATCH = 10_000  # as Spark passes them on
_PARTICIPANTS = 60
_IN_TURN = 4


class _Table:
    """A table without an index, empty before each run, and the same rows for all variants."""

    def __init__(self, served: Served, rows: int, name: str = _TABLE, columns: str = _COLUMNS) -> None:
        served.make(name, columns)
        self.served = served
        self._name = name
        self.rows = rows
        self.batches = list(_batches(rows))
        self.backend = served.backend(name, served.conninfo)
        self.committer = self.backend.committer(JobContext("benchmark", name, staging=""))
        self.ticket = self.committer.open_epoch(0, _SCHEMA, None)
        self._epochs = count()

    def variant(self, name: str, work: Work) -> Variant:
        """Run `work` on the empty table."""

        def prepare(folder: Path) -> Work:
            self.served.empty(self._name)
            return work

        return Variant(name, prepare)

    def session(self) -> psycopg.Connection:
        return psycopg.connect(self.served.conninfo, autocommit=True)

    def load(self) -> None:
        """Load all rows as one participant does, and commit them at once."""
        writer = self.backend.writer(self._txn(next(self._epochs), 0), _SCHEMA, self.ticket)
        assert isinstance(writer, LoadingWriter)
        for batch in self.batches:
            writer.write(batch)
        assert writer.finish() == self.rows
        writer.end("COMMIT")
        writer.abort()  # the session

    def prepare(self, participants: int) -> tuple[int, Sequence[Committable]]:
        """Load all rows as each of so many participants of a new epoch, and prepare them."""
        epoch, votes = next(self._epochs), []
        for partition in range(participants):
            writer = self.backend.writer(self._txn(epoch, partition), _SCHEMA, self.ticket)
            for batch in self.batches:
                writer.write(batch)
            votes.append(writer.pre_commit())
        assert [vote.rows for vote in votes] == [self.rows] * participants
        return epoch, votes

    def commit(self, epoch: int, votes: Sequence[Committable]) -> None:
        """Commit an epoch as the coordinator does."""
        assert self.committer.commit(epoch, votes) == [Committed()] * len(votes)

    def _txn(self, epoch: int, partition: int) -> Txn:
        """Return a participant's name. Each participant leaves a mark."""
        return Txn("benchmark", epoch, self._name, 1, "0123456789ab", partition, partition)


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    numbers = random.Random(5)
    for first in range(0, rows, _A_BATCH):
        ids = range(first, min(rows, first + _A_BATCH))
        digits = numbers.randbytes(50 * len(ids)).hex()
        columns: Mapping[str, object] = {
            "id": ids,
            "amount": [n / 7 for n in ids],
            "moment": [1_700_000_000_000_000 + 1_000_001 * n for n in ids],
            "name": [f"name-{n % 1000}" for n in ids],
            "text": [digits[100 * n : 100 * n + 100] for n in range(len(ids))],
        }
        yield pa.record_batch([pa.array(columns[field.name], field.type) for field in _SCHEMA], schema=_SCHEMA)


@contextmanager
def _open_load(setting: Setting) -> Iterator[Plan]:
    with serving() as served:
        table = _Table(served, setting.scaled(1_000_000))
        texts = _Table(served, table.rows, *_AS_TEXT)
        file = served.server.folder / "rows.copy"  # where the server's user may write, and read
        table.load()
        with table.session() as session:
            session.execute(f"COPY {_TABLE} TO '{file}' (FORMAT binary)".encode())
        variants = [
            table.variant("loader", _loaded(table, table.load)),
            table.variant("server's COPY", _loaded(table, lambda: _server_copy(table, file))),
            table.variant("pgpq alone", _loaded(table, lambda: _pgpq(table))),
            texts.variant("loader, as text", _loaded(texts, texts.load)),
        ]
        bounds = [
            Bound("rows_per_s", "loader", "server's COPY", at_least=0.85),
            Bound("rows_per_cpu_s", "loader", "server's COPY"),
            Bound("rows_per_s", "loader", "pgpq alone"),
            Bound("client_cpu_s", "loader", "pgpq alone"),
            Bound("rows_per_cpu_s", "loader, as text", "loader"),
        ]
        size = sum(batch.nbytes for batch in table.batches) / table.rows
        notes = [
            f"{table.rows:,} rows of {size:.0f} bytes in Arrow, {_A_BATCH:,} a batch, in hand; no index",
            "each connects over the socket, loads as one participant, and commits",
            "server's COPY: from a binary file that it reads itself; pgpq alone: nothing checked, nothing watched",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)
        table.committer.close()
        texts.committer.close()


def _loaded(table: _Table, load: Callable[[], object]) -> Work:
    def work() -> Metrics:
        cpu = time.process_time()
        load()
        return {"rows": table.rows, "client_cpu_s": time.process_time() - cpu}

    return work


def _server_copy(table: _Table, file: Path) -> None:
    with table.session() as session:
        assert session.execute(f"COPY {_TABLE} FROM '{file}' (FORMAT binary)".encode()).rowcount == table.rows


def _pgpq(table: _Table) -> None:
    """Load with the same two libraries, without exactsink's code."""
    encoder = ArrowToPostgresBinaryEncoder(_SCHEMA)
    with table.session() as session, session.cursor() as cursor:
        with cursor.copy(f"COPY {_TABLE} FROM STDIN (FORMAT binary)".encode()) as copy:
            copy.write(encoder.write_header())
            for batch in table.batches:
                copy.write(encoder.write_batch(batch))
            copy.write(encoder.finish())
        assert cursor.rowcount == table.rows


@contextmanager
def _open_commit(setting: Setting) -> Iterator[Plan]:
    times = setting.scaled(10)
    with serving() as served:
        table = _Table(served, 100)
        variants = [
            table.variant("committer", lambda: _commits(table, times, table.commit)),
            table.variant("one by one", lambda: _commits(table, times, lambda _, votes: _one_by_one(table, votes))),
        ]
        bounds = [
            Bound("commit_ms", "committer", at_most=30),
            Bound("slowest_ms", "committer"),
            Bound("commit_ms", "committer", "one by one"),
        ]
        notes = [
            f"{_PARTICIPANTS} participants of {table.rows} rows, prepared beforehand; the committer's session is open",
            f"commit_ms is the median of a round's {times} epochs, slowest_ms the slowest of them",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)
        table.committer.close()


def _commits(table: _Table, times: int, commit: Callable[[int, Sequence[Committable]], None]) -> Metrics:
    taken = []
    for _ in range(times):
        epoch, votes = table.prepare(_PARTICIPANTS)
        started = time.perf_counter()
        commit(epoch, votes)
        taken.append((time.perf_counter() - started) * 1000)
    assert table.served.count(_TABLE) == times * _PARTICIPANTS * table.rows
    return {"commit_ms": statistics.median(taken), "slowest_ms": max(taken)}


def _one_by_one(table: _Table, votes: Sequence[Committable]) -> None:
    with table.session() as session:
        there = list_prepared(session, [vote.txn.id for vote in votes])
        for gid in there:
            session.execute(f"COMMIT PREPARED '{gid}'".encode())
    assert len(there) == len(votes)


@contextmanager
def _open_prepare(setting: Setting) -> Iterator[Plan]:
    with serving() as served:
        table = _Table(served, setting.scaled(100_000))

        def in_two_phases() -> Metrics:
            table.commit(*table.prepare(_IN_TURN))
            return {"rows": _IN_TURN * table.rows}

        def plain() -> Metrics:
            for _ in range(_IN_TURN):
                table.load()
            return {"rows": _IN_TURN * table.rows}

        variants = [table.variant("two phases", in_two_phases), table.variant("plain commits", plain)]
        bounds = [
            Bound("wall_s", "two phases", "plain commits", at_most=1.1),
            Bound("cpu_s", "two phases", "plain commits"),
        ]
        notes = [
            f"{_IN_TURN} participants of {table.rows:,} rows in turn, into a table without an index",
            "two phases: our writer, PREPARE, our committer; plain commits: the same load, COMMIT",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)
        table.committer.close()


LOAD = Benchmark("postgres_load", "Rows a second into PostgreSQL, beside the server's COPY from a file.", _open_load)
COMMIT = Benchmark("postgres_commit", "Committing 60 prepared participants of an epoch in PostgreSQL.", _open_commit)
PREPARE = Benchmark("postgres_prepare", "Two phases in PostgreSQL, beside the same loads committed.", _open_prepare)
