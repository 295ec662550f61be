"""Strategy `two_phase`: tasks prepare transactions, and the driver commits them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    ExactsinkError,
    Fatal,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Standing,
    Txn,
    Unknown,
)
from exactsink.toolkit.payloads import check_version
from exactsink_postgres.committer import UNBEGUN, PostgresCommitter, check_owners, finish, list_prepared
from exactsink_postgres.load import LoadingWriter, Ticket
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight import set_on_server
from exactsink_postgres.tables import chosen_columns, ensure_table

__all__ = ["TwoPhaseCommitter", "TwoPhaseWriter"]

_DECIDED = "the epoch is decided, and is committed again; no row is lost"


class TwoPhaseWriter(LoadingWriter):
    """COPY into the table itself, in a transaction that is prepared under the participant's id."""

    def __init__(self, options: PostgresOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        super().__init__(options, txn, schema, Ticket.load(ticket))

    def enter(self) -> None:
        """Leave the participant's mark: it shows with the rows, or never."""
        super().enter()
        self.marks.add(self._txn.epoch, self._txn.token, self._txn.id, self.tag)

    def vote(self, rows: int) -> dict[str, Any]:
        try:
            self.end("PREPARE TRANSACTION", sql.quote(self._txn.id))
        except ExactsinkError as error:
            raise self._without_slot(error.__cause__) or error from error.__cause__
        return {}

    def _without_slot(self, cause: BaseException | None) -> ExactsinkError | None:
        """Explain the answer of a server that has no free slot for a prepared transaction."""
        if isinstance(cause, psycopg.errors.ObjectNotInPrerequisiteState):
            more = set_on_server({"max_prepared_transactions": 64}, restart=True)
            fix = f'{more}; or set strategy = "staged" for this sink, which needs none'
            why = "max_prepared_transactions is 0 on this server"
            return Fatal(f"{self._doing}: {cause.diag.message_primary}", why=why, next=fix)
        return None


class TwoPhaseCommitter(PostgresCommitter):
    """Commit prepared transactions by name. If a name is gone, the mark that it left proves the outcome."""

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self.using(f"prepare table {self._options.name} for epoch {epoch}", UNBEGUN, epoch) as session:
            table = ensure_table(session, self._options, self.ctx.sink, schema)
            where = str(table), table.sql, chosen_columns(table, schema)
            return Ticket(*where, table.schema, self.ctx.lineage, self._fed_by(session)).dump()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        gids = _read(committables)
        doing = f"commit epoch {epoch} in table {self._options.name}"
        with self.using(doing, _DECIDED) as session:
            marks, seen = self._seen(session, doing)
            # In this order, in two statements: the second one finds a participant that is committed between them.
            done = finish(session, "COMMIT", list_prepared(session, gids), f"sink {self.ctx.sink}: {doing}")
            session.await_standbys()
            proven = marks.proven(epoch, gids) if done != set(gids) else set()
            if done | proven != set(gids):
                self._seen(session, doing)  # a missing participant is lost only on the server whose mark was read
        return [Committed() if gid in done else _resolved(gid, proven, seen) for gid in gids]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        gids = _read(committables)
        doing = f"check how epoch {epoch} ended in table {self._options.name}"
        with self.using(doing) as session:
            marks, seen = self._seen(session, doing)
            held = list_prepared(session, gids)  # in this order, as in `commit`
            proven = marks.proven(epoch, gids) if held.keys() != set(gids) else set()
            if held.keys() | proven != set(gids):
                self._seen(session, doing)
            check_owners(session, held, f"sink {self.ctx.sink}: {doing}")
        return [Prepared() if gid in held else _resolved(gid, proven, seen) for gid in gids]


def _read(committables: Sequence[Committable]) -> Sequence[str]:
    """Return the names of the prepared transactions. Raises Fatal for a vote of another release."""
    for committable in committables:
        check_version(committable, TwoPhaseWriter.payload_version)
    return [committable.txn.id for committable in committables]


def _resolved(gid: str, proven: Collection[str], seen: Mark | None) -> AlreadyCommitted | Lost | Unknown:
    """Return the outcome of a participant that is not prepared, given the mark that the table had then."""
    if gid in proven:
        return AlreadyCommitted()
    if seen is not None:
        return Lost(f"{gid} is not prepared, and left no mark; the target's mark is {seen}")
    return Unknown(f"{gid} is not prepared, and nothing in the target shows its outcome")
