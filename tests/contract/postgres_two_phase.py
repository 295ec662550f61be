"""Skeleton: one prepared transaction per participant. Fits the contract as it is.

The gid is `Txn.id` (Postgres takes 199 bytes), so `in_doubt` and `abort` need no other record. `commit` is list and
settle: COMMIT PREPARED in a pipeline; what is missing is settled by the transaction id in the vote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import Field, SecretStr

from exactsink.backend import Backend, BackendOptions, Committer, Writer
from exactsink.model import Committable, Finding, InDoubt, JobContext, Outcome, Traits, Txn, Undecided


class PostgresOptions(BackendOptions):
    dsn: SecretStr
    server: str  # host and database, as they may be journaled
    table: str
    lock_timeout_seconds: float = Field(default=10, gt=0)
    strategy: Literal["two_phase"] = "two_phase"


@dataclass(frozen=True)
class PreparedVote:
    """The payload of a committable; the gid is the txn's id."""

    xid: int  # pg_current_xact_id(): settles a repeat
    system_identifier: int  # pg_control_system(): another cluster can prove nothing


class PostgresWriter(Writer):
    def __init__(self, options: PostgresOptions, txn: Txn, schema: pa.Schema) -> None:
        self._options = options
        self._txn = txn
        self._schema = schema

    def write(self, batch: pa.RecordBatch) -> None:
        raise NotImplementedError  # at the first: connect, BEGIN, SET LOCAL lock_timeout, COPY; 55P03 names the blocker

    def pre_commit(self) -> Committable:
        raise NotImplementedError  # end COPY, pg_current_xact_id, PREPARE TRANSACTION; check the command tag

    def abort(self) -> None:
        raise NotImplementedError  # close the connection


class PostgresCommitter(Committer):
    def __init__(self, options: PostgresOptions, ctx: JobContext) -> None:
        self._options = options
        self._ctx = ctx

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        # SHOW max_prepared_transactions against participants (None: set max_participants), columns and types,
        # pg_is_in_recovery; how far back transaction status is known, against the longest pause of the job (not told)
        raise NotImplementedError

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        raise NotImplementedError  # CREATE TABLE IF NOT EXISTS; an empty ticket

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        # pipeline of COMMIT PREPARED; after a missing gid (42704): list pg_prepared_xacts, go on with those that are
        # there; the missing by pg_xact_status(xid): committed AlreadyCommitted, aborted Lost, NULL or 22023 Unknown,
        # in progress (another process is at it, 55000) Retryable
        raise NotImplementedError

    def abort(self, undecided: Undecided) -> None:
        raise NotImplementedError  # ROLLBACK PREPARED txn.id each; 42704 is done already

    def in_doubt(self) -> Iterable[InDoubt]:
        raise NotImplementedError  # pg_prepared_xacts of this database, gid LIKE '{job}.{sink}.%'; Txn.parse(gid)

    def close(self) -> None:
        raise NotImplementedError  # the connection


class PostgresBackend(Backend):
    Options = PostgresOptions
    options: PostgresOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"postgres:{self.options.server}#{self.options.table}"

    @property
    def traits(self) -> Traits:
        return Traits()

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return PostgresWriter(self.options, txn, schema)

    def committer(self, ctx: JobContext) -> Committer:
        return PostgresCommitter(self.options, ctx)


SAMPLE: Backend = PostgresBackend(
    PostgresOptions.model_validate(
        {"dsn": "postgresql://localhost/shop", "server": "localhost/shop", "table": "orders"}
    )
)
