"""Participants of `two_phase` sinks, made by hand: one database, many jobs, no coordinator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from exactsink.contract import Committable, InDoubt, JobContext, Outcome, Txn, Undecided
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.two_phase import TwoPhaseCommitter, TwoPhaseWriter

__all__ = ["ROWS", "TOKEN", "Branches", "kinds", "proven", "rows", "voted", "xid_of"]

TOKEN = "0123456789abcdef"
ROWS = pa.schema([("id", pa.int64()), ("kind", pa.string())])


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"k{n}" for n in ids])], schema=ROWS)


def proven(*participants: InDoubt) -> Undecided:
    """Build what only the journal may build."""
    undecided: Undecided = object.__new__(Undecided)
    undecided._participants = participants
    return undecided


@dataclass(frozen=True)
class Branches:
    """One job's sink `out` into table `table`, which has the same name as the job, in a database at `conninfo`."""

    conninfo: str
    job: str
    sink: str = "out"
    generation: int = 1
    given: tuple[tuple[str, Any], ...] = ()

    def with_(self, **given: Any) -> Branches:
        return replace(self, given=(*self.given, *given.items()))

    @property
    def options(self) -> PostgresOptions:
        standard = {"conninfo": self.conninfo, "table": f'"{self.job}"', "lock_timeout_seconds": 5}
        return PostgresOptions.model_validate({**standard, **dict(self.given)})

    def table(self, columns: str = "id bigint PRIMARY KEY, kind text") -> Branches:
        self.run(f'CREATE TABLE "{self.job}" ({columns})')
        return self

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for statement in statements:
                cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def committer(self) -> TwoPhaseCommitter:
        return TwoPhaseCommitter(self.options, JobContext(self.job, self.sink, "", self.generation))

    def ticket(self, epoch: int = 0, schema: pa.Schema = ROWS) -> bytes:
        committer = self.committer()
        try:
            return committer.open_epoch(epoch, schema, None)
        finally:
            committer.close()

    def txn(self, partition: int, attempt: int = 0, epoch: int = 0) -> Txn:
        return Txn(self.job, epoch, self.sink, self.generation, TOKEN, partition, attempt)

    def writer(self, partition: int, attempt: int = 0, epoch: int = 0, schema: pa.Schema = ROWS) -> TwoPhaseWriter:
        ticket = self.ticket(epoch, schema)
        return TwoPhaseWriter(self.options, self.txn(partition, attempt, epoch), schema, ticket)

    def prepare(self, partition: int, *ids: int, attempt: int = 0, epoch: int = 0) -> Committable:
        writer = self.writer(partition, attempt, epoch)
        writer.write(rows(*ids))
        return writer.pre_commit()

    def prepare_many(self, count: int) -> list[Committable]:
        """Prepare participants of one row each, without the cost of a writer's own open_epoch."""
        ticket, voted = self.ticket(), []
        for partition in range(count):
            writer = TwoPhaseWriter(self.options, self.txn(partition), ROWS, ticket)
            writer.write(rows(partition))
            voted.append(writer.pre_commit())
        return voted

    def foreign(self, gid: str, statement: str) -> None:
        """Prepare a stranger's transaction."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            session.execute("BEGIN")
            session.execute(statement.encode())
            session.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))

    def end(self, how: str, *gids: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for gid in gids:
                session.execute(sql.SQL(how + " PREPARED {}").format(sql.Literal(gid)))

    def sweep(self) -> list[str]:
        """Abort all that is listed, and say what that was."""
        committer = self.committer()
        try:
            found = list(committer.in_doubt())
            committer.abort(proven(*found))
        finally:
            committer.close()
        return sorted(participant.ref for participant in found)

    def commit(self, committables: Sequence[Committable]) -> list[str]:
        """Commit in a new driver, and name the outcomes."""
        return kinds(self.outcomes(committables))

    def outcomes(self, committables: Sequence[Committable]) -> Sequence[Outcome]:
        committer = self.committer()
        try:
            return committer.commit(0, committables)
        finally:
            committer.close()

    def prepared(self) -> list[str]:
        """List what stands prepared in this database, whoever's it is."""
        return [
            g for (g,) in self.run("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1")
        ]

    def ids(self) -> list[int]:
        return [n for (n,) in self.run(f'SELECT id FROM "{self.job}" ORDER BY id')]

    def sessions(self) -> list[int]:
        """List the sessions that write for this job."""
        query = f"SELECT pid FROM pg_stat_activity WHERE starts_with(query, '/* exactsink {self.job}.') "
        return [pid for (pid,) in self.run(query + "AND datname = current_database() AND xact_start IS NOT NULL")]

    def clean(self) -> None:
        for gid in self.prepared():
            with suppress(psycopg.errors.UndefinedObject):
                self.end("ROLLBACK", gid)


def voted(committable: Committable, **changes: Any) -> Committable:
    """Return a committable with another payload."""
    return replace(committable, payload=json.dumps({**json.loads(committable.payload), **changes}).encode())


def xid_of(committable: Committable) -> int:
    return int(json.loads(committable.payload)["xid"])


def kinds(outcomes: Sequence[object]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]
