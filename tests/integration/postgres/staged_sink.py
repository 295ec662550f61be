"""Drive the staged strategy through the backend's public contract, and look at the tables from outside."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo

from exactsink.contract import Committable, Committer, JobContext, Outcome, Txn, Writer
from exactsink_postgres.backend import PostgresBackend
from exactsink_postgres.options import PostgresOptions

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
TOKEN = "aa"


class Sink:
    """One sink of a job, with strategy `staged`, and its table t."""

    def __init__(
        self, conninfo: str, job: str = "orders", sink: str = "out", lineage: str = "l1", **options: Any
    ) -> None:
        self.conninfo = conninfo
        self.job = job
        self.sink = sink
        self.lineage = lineage
        given = {"conninfo": conninfo, "table": "t", "strategy": "staged", "lock_timeout_seconds": 5, **options}
        self.backend = PostgresBackend(PostgresOptions.model_validate(given))

    def committer(self, generation: int = 1) -> Committer:
        return self.backend.committer(JobContext(self.job, self.sink, "", generation, self.lineage))

    def open(self, epoch: int, generation: int = 1, schema: pa.Schema = SCHEMA) -> bytes:
        committer = self.committer(generation)
        try:
            return committer.open_epoch(epoch, schema, None)
        finally:
            committer.close()

    def txn(self, epoch: int, partition: int = 0, attempt: int | None = None, generation: int = 1) -> Txn:
        attempt = 100 * epoch + partition if attempt is None else attempt
        return Txn(self.job, epoch, self.sink, generation, TOKEN, partition, attempt)

    def task(self, ticket: bytes, txn: Txn, *rows: Sequence[Any], schema: pa.Schema = SCHEMA) -> Writer:
        """One task that has taken its rows, and has not yet voted."""
        writer = self.backend.writer(txn, schema, ticket)
        try:
            writer.write(batch(schema, rows))
        except BaseException:
            writer.abort()
            raise
        return writer

    def vote(
        self, epoch: int, *partitions: Sequence[Sequence[Any]], generation: int = 1, schema: pa.Schema = SCHEMA
    ) -> list[Committable]:
        """Open the epoch; write and pre-commit one participant per partition."""
        ticket = self.open(epoch, generation, schema)
        txns = [self.txn(epoch, n, generation=generation) for n in range(len(partitions))]
        return [self.task(ticket, txn, *p, schema=schema).pre_commit() for txn, p in zip(txns, partitions, strict=True)]

    def commit(self, epoch: int, votes: Sequence[Committable], generation: int = 1) -> list[str]:
        """Commit, and name the outcomes."""
        return [type(outcome).__name__ for outcome in self.outcomes(epoch, votes, generation)]

    def outcomes(self, epoch: int, votes: Sequence[Committable], generation: int = 1) -> Sequence[Outcome]:
        committer = self.committer(generation)
        try:
            return committer.commit(epoch, votes)
        finally:
            committer.close()

    def in_doubt(self, generation: int = 2) -> list[str]:
        committer = self.committer(generation)
        try:
            return sorted(participant.ref for participant in committer.in_doubt())
        finally:
            committer.close()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def rows(self, query: str = "SELECT id, v FROM t ORDER BY id") -> list[tuple[Any, ...]]:
        return self.sql(query)

    @property
    def schema(self) -> str:
        return str(self.sql("SELECT current_schema()")[0][0])

    def staging_tables(self) -> list[str]:
        """Return what the comments of the staging tables say: job.sink.g(generation)-(lineage).e(epoch)."""
        return sorted(comment for _, comment in self._staging())

    def rows_table(self) -> str:
        """Name the only staging table there is."""
        ((name, _),) = self._staging()
        return str(name)

    def staged_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of all staging tables."""
        return [row for name, _ in self._staging() for row in self.sql(f"SELECT * FROM {name}")]

    def _staging(self) -> list[tuple[Any, ...]]:
        query = "SELECT relname, obj_description(oid, 'pg_class') FROM pg_class WHERE relkind = 'r' "
        query += "AND relnamespace = to_regnamespace(current_schema()) AND starts_with(relname, 'exactsink_rows_')"
        return self.sql(query)

    def registered(self) -> list[str]:
        return [p for (p,) in self.sql("SELECT participant FROM exactsink_staged ORDER BY participant")]


def batch(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


@contextmanager
def new_sink(database: str, make: str, **options: Any) -> Iterator[Sink]:
    """Return a sink in a schema of its own, where `make` was run."""
    schema = f"s_{uuid.uuid4().hex[:12]}"
    sink = Sink(make_conninfo(database, options=f"-csearch_path={schema}"), **options)
    sink.sql(f"CREATE SCHEMA {schema}")
    try:
        sink.sql(make)
        yield sink
    finally:
        sink.sql(  # what a test that failed has left open holds locks
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        sink.sql(f"DROP SCHEMA {schema} CASCADE")
