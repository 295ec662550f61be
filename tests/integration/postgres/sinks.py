"""Sinks on a real server, driven call by call through `exactsink.testing.Session`, and looked at from outside."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo

from exactsink.contract import Committable, Committer, InDoubt, JobContext, Mark, Outcome, Txn, Writer
from exactsink.testing import Session
from exactsink_postgres.backend import PostgresBackend, PostgresOptions
from tests.assessed import commit_assessed

TOKEN = "0123456789abcdef"
ROWS = pa.schema([("id", pa.int64()), ("kind", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(*ids: int) -> pa.RecordBatch:
    return batch(ROWS, [(n, f"k{n}") for n in ids])


def batch(schema: pa.Schema, given: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in given], schema=schema)


def kinds(outcomes: Sequence[object]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


@dataclass(frozen=True)
class _Sink:
    """One sink of a job at `conninfo`, as one claim has it."""

    conninfo: str
    job: str = "orders"
    sink: str = "out"
    generation: int = 1
    lineage: str = "l1"
    token: str = TOKEN
    given: tuple[tuple[str, Any], ...] = ()

    def bound(self) -> Any:
        """Bind the target to the journal."""
        with self.committer() as committer:
            committer.put_birth()
        return self

    def with_(self, **given: Any) -> Any:
        """Return the same with other options."""
        return replace(self, given=(*self.given, *given.items()))

    @property
    def backend(self) -> PostgresBackend:
        given = {"conninfo": self.conninfo, "lock_timeout_seconds": 5, **self._standard, **dict(self.given)}
        return PostgresBackend(PostgresOptions.model_validate(given))

    @property
    def _standard(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def session(self) -> Session:
        return Session(self.backend, JobContext(self.job, self.sink, "", self.generation, self.lineage), self.token)

    @contextmanager
    def committer(self) -> Iterator[Committer]:
        committer = self.backend.committer(self.session.ctx)
        try:
            yield committer
        finally:
            committer.close()

    def mark(self) -> Mark | None:
        with self.committer() as committer:
            return committer.mark()

    def listed(self) -> list[str]:
        return sorted(participant.ref for participant in self.session.listed())

    def abort(self, *txns: Txn) -> None:
        self.session.abort(*map(InDoubt.of, txns))

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for statement in statements:
                cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def writer(self, txn: Txn, ticket: bytes, *given: Sequence[Any], schema: pa.Schema = ROWS) -> Writer:
        """Return a task that has taken its rows, and has not yet voted."""
        writer = self.backend.writer(txn, schema, ticket)
        try:
            if given:
                writer.write(batch(schema, given))
        except BaseException:
            writer.abort()
            raise
        return writer


class Branches(_Sink):
    """A sink with strategy `two_phase` into a table that has the same name as the job; epoch 0."""

    @property
    def _standard(self) -> dict[str, Any]:
        return {"table": f'"{self.job}"'}

    def table(self, columns: str = "id bigint PRIMARY KEY, kind text") -> Branches:
        """Make the table, and bind it to the journal, as the core does before the first epoch."""
        self.run(f'CREATE TABLE "{self.job}" ({columns})')
        self.bound()
        return self

    def ticket(self, epoch: int = 0, schema: pa.Schema = ROWS) -> bytes:
        return self.session.open(epoch, schema)

    def txn(self, partition: int, attempt: int = 0, epoch: int = 0) -> Txn:
        return self.session.txn(epoch, partition, attempt)

    def writing(self, partition: int, *ids: int, attempt: int = 0, epoch: int = 0) -> Writer:
        """Return a task that has taken its rows, and has not yet voted."""
        return self.writer(self.txn(partition, attempt, epoch), self.ticket(epoch), *((n, f"k{n}") for n in ids))

    def prepare(self, partition: int, *ids: int, attempt: int = 0) -> Committable:
        return self.session.write(0, partition, self.ticket(), pa.Table.from_batches([rows(*ids)]), attempt)

    def prepare_many(self, count: int) -> list[Committable]:
        """Prepare participants of one row each."""
        return self.session.prepare(0, [pa.Table.from_batches([rows(n)]) for n in range(count)])

    def foreign(self, gid: str, statement: str) -> None:
        """Prepare a transaction that is not exactsink's."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            session.execute("BEGIN")
            session.execute(statement.encode())
            session.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))

    def end(self, how: str, *gids: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for gid in gids:
                session.execute(sql.SQL(how + " PREPARED {}").format(sql.Literal(gid)))

    def sweep(self) -> list[str]:
        """Abort all that is listed, and return what that was."""
        found = self.session.listed()
        if found:
            self.session.abort(*found)
        return sorted(participant.ref for participant in found)

    def outcomes(self, *committables: Committable) -> list[Outcome]:
        return commit_assessed(self.session, 0, committables)

    def commit(self, *committables: Committable) -> list[str]:
        """Commit in a new driver, and name the outcomes."""
        return kinds(self.outcomes(*committables))

    def prepared(self) -> list[str]:
        """List what stands prepared in this database, whoever's it is."""
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1"
        return [gid for (gid,) in self.run(query)]

    def ids(self) -> list[int]:
        return [n for (n,) in self.run(f'SELECT id FROM "{self.job}" ORDER BY id')]

    def writing_sessions(self) -> list[int]:
        """List the sessions that write for this job."""
        query = f"SELECT pid FROM pg_stat_activity WHERE starts_with(query, '/* exactsink {self.job}.') "
        return [pid for (pid,) in self.run(query + "AND datname = current_database() AND xact_start IS NOT NULL")]

    def clean(self) -> None:
        for gid in self.prepared():
            with suppress(psycopg.errors.UndefinedObject):
                self.end("ROLLBACK", gid)


class Staged(_Sink):
    """A sink with strategy `staged` into table t of its search path's first schema, for rows of `SCHEMA`."""

    @property
    def _standard(self) -> dict[str, Any]:
        return {"table": "t", "strategy": "staged"}

    def claim(self, generation: int) -> Staged:
        return replace(self, generation=generation)

    def open(self, epoch: int) -> bytes:
        return self.session.open(epoch, SCHEMA)

    def task(self, ticket: bytes, txn: Txn, *given: Sequence[Any]) -> Writer:
        """Return a task that has taken its rows, and has not yet voted."""
        return self.writer(txn, ticket, *given, schema=SCHEMA)

    def txn(self, epoch: int, partition: int = 0, attempt: int | None = None) -> Txn:
        return self.session.txn(epoch, partition, 100 * epoch + partition if attempt is None else attempt)

    def vote(self, epoch: int, *partitions: Sequence[Sequence[Any]], schema: pa.Schema = SCHEMA) -> list[Committable]:
        """Open the epoch; write and pre-commit one participant per partition."""
        ticket = self.session.open(epoch, schema)
        txns = [self.txn(epoch, n) for n in range(len(partitions))]
        return [self.writer(t, ticket, *p, schema=schema).pre_commit() for t, p in zip(txns, partitions, strict=True)]

    def commit(self, epoch: int, votes: Sequence[Committable]) -> list[str]:
        """Commit, and name the outcomes."""
        return kinds(self.session.commit(epoch, votes))

    def rows(self, query: str = "SELECT id, v FROM t ORDER BY id") -> list[tuple[Any, ...]]:
        return self.run(query)

    @property
    def schema(self) -> str:
        return str(self.run("SELECT current_schema()")[0][0])

    def staging_tables(self) -> list[str]:
        """Return whose epochs' rows wait, by the tables' comments: job.sink.g(generation)-(lineage).e(epoch)."""
        return sorted(comment.split()[0] for _, comment in self._staging())

    def rows_table(self) -> str:
        """Name the only staging table that is in use."""
        ((name, _),) = self._staging()
        return str(name)

    def staged_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of all staging tables."""
        return [row for name, _ in self._staging() for row in self.run(f"SELECT * FROM {name}")]

    def _staging(self) -> list[tuple[Any, ...]]:
        query = "SELECT relname, obj_description(oid, 'pg_class') FROM pg_class WHERE relkind = 'r' "
        query += "AND relnamespace = to_regnamespace(current_schema()) AND starts_with(relname, 'exactsink_rows_')"
        return [found for found in self.run(query) if ".free " not in found[1]]

    def registered(self) -> list[str]:
        return [p for (p,) in self.run("SELECT participant FROM exactsink_staged ORDER BY participant")]


@contextmanager
def new_sink(database: str, make: str, **options: Any) -> Iterator[Staged]:
    """Return a staged sink in a schema of its own, where `make` was run; its staging tables are there, too."""
    schema = f"s_{uuid.uuid4().hex[:12]}"
    given = {"staging_schema": schema, **options}
    sink = Staged(make_conninfo(database, options=f"-csearch_path={schema}"), given=tuple(given.items()))
    sink.run(f"CREATE SCHEMA {schema}")
    try:
        sink.run(make)
        yield sink.bound()
    finally:
        sink.run(  # what a test that failed has left open holds locks
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        sink.run(f"DROP SCHEMA {schema} CASCADE")
