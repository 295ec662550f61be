"""Skeleton: one XA branch per participant, on MySQL or MariaDB. Fits, with two things of its own.

An xid holds 128 bytes (64 + 64), `Txn.id` up to 199: the branch is named by the txn's fields packed, which read back.
And the server remembers no outcome: a row per branch, written in it, reports a committed one from a rolled back one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import SecretStr

from exactsink.contract import (
    Backend,
    BackendOptions,
    Committable,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Traits,
    Txn,
    Undecided,
    Writer,
)

_FORMAT = 0x6578736B
"""The formatID of our branches: XA RECOVER shows everybody's."""


class MysqlOptions(BackendOptions):
    url: SecretStr
    server: str
    table: str
    strategy: Literal["xa"] = "xa"


@dataclass(frozen=True)
class Xid:
    """A branch's name, at most 64 + 64 bytes: job, sink, then generation, token, epoch, partition, attempt packed."""

    gtrid: bytes
    bqual: bytes
    format: int = _FORMAT


@dataclass(frozen=True)
class XaVote:
    """The payload of a committable; the xid follows from the txn."""

    server_uuid: str  # another server can prove nothing


class MysqlWriter(Writer):
    def __init__(self, options: MysqlOptions, txn: Txn, schema: pa.Schema) -> None:
        self._options = options
        self._txn = txn
        self._schema = schema

    def write(self, batch: pa.RecordBatch) -> None:
        raise NotImplementedError  # at the first: connect, XA START, INSERT INTO exactsink_branches; then executemany

    def pre_commit(self) -> Committable:
        raise NotImplementedError  # XA END, XA PREPARE, disconnect

    def abort(self) -> None:
        raise NotImplementedError  # close the connection: the server rolls back what is not prepared


class MysqlCommitter(Committer):
    def __init__(self, options: MysqlOptions, ctx: JobContext) -> None:
        self._options = options
        self._ctx = ctx

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        raise NotImplementedError  # version, xa_detach_on_prepare, XA_RECOVER_ADMIN, InnoDB, columns

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        raise NotImplementedError  # CREATE TABLE IF NOT EXISTS exactsink_branches; DELETE rows of epochs < epoch - 1

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        # XA COMMIT each; 1397: XA RECOVER lists it Retryable; its row in exactsink_branches is there AlreadyCommitted;
        # neither: rolled back, Lost. Another server_uuid: Unknown
        raise NotImplementedError

    def abort(self, undecided: Undecided) -> None:
        raise NotImplementedError  # XA ROLLBACK _xid(txn) each; 1397 is done already

    def in_doubt(self) -> Iterable[InDoubt]:
        raise NotImplementedError  # XA RECOVER CONVERT XID: _FORMAT only, unpacked, own job and sink; it knows no age

    def close(self) -> None:
        raise NotImplementedError  # the connection


class MysqlBackend(Backend):
    Options = MysqlOptions
    options: MysqlOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"mysql:{self.options.server}#{self.options.table}"

    @property
    def traits(self) -> Traits:
        return Traits()

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return MysqlWriter(self.options, txn, schema)

    def committer(self, ctx: JobContext) -> Committer:
        return MysqlCommitter(self.options, ctx)


def _xid(txn: Txn) -> Xid:
    raise NotImplementedError


def _txn(xid: Xid) -> Txn | None:
    raise NotImplementedError


SAMPLE: Backend = MysqlBackend(
    MysqlOptions.model_validate({"url": "mysql://localhost/shop", "server": "localhost/shop", "table": "orders"})
)
