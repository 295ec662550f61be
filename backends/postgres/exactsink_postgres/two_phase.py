"""Strategy `two_phase`: tasks prepare transactions, and the decision commits what they prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
    Outcome,
    Retryable,
    Txn,
    Unknown,
)
from exactsink_postgres.committer import PostgresCommitter, Prepared, finish, list_prepared
from exactsink_postgres.errors import AGAIN, UNDECIDED, shown
from exactsink_postgres.load import LoadingWriter, Ticket, payload_of
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight import set_on_server
from exactsink_postgres.server import History
from exactsink_postgres.tables import chosen_columns, ensure_table

__all__ = ["TwoPhaseCommitter", "TwoPhaseWriter"]

_DECIDED = "the epoch is decided, and is committed again; no row is lost"


@dataclass(frozen=True, slots=True)
class _Vote:
    """What a participant's payload says: its transaction's id, and where that has a meaning."""

    gid: str
    xid: int
    history: History

    @classmethod
    def load(cls, committable: Committable) -> _Vote:
        voted = payload_of(committable)
        return cls(committable.txn.id, voted.pop("xid"), History(**voted))

    def is_of(self, listed: Prepared) -> bool:
        """Hold a listed id, which has 32 bits, against the whole one."""
        return listed.xid == self.xid % (1 << 32)

    def __str__(self) -> str:
        return f"prepared transaction {self.gid} (transaction id {self.xid})"


class TwoPhaseWriter(LoadingWriter):
    """COPY into the table itself, in a transaction that is prepared under the participant's id."""

    def __init__(self, options: PostgresOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        super().__init__(options, txn, schema, Ticket.load(ticket))

    def vote(self, rows: int) -> dict[str, Any]:
        try:
            self.end("PREPARE TRANSACTION", sql.quote(self._txn.id))
        except ExactsinkError as error:
            raise self._without_slot(error.__cause__) or error from error.__cause__
        return {"xid": self.xid, **asdict(self.history)}

    def _without_slot(self, cause: BaseException | None) -> ExactsinkError | None:
        """Explain what a server answers that has no slot to prepare in."""
        if isinstance(cause, psycopg.errors.ObjectNotInPrerequisiteState):
            return Fatal(
                f"{self._doing}: {cause.diag.message_primary}",
                why="max_prepared_transactions is 0 on this server",
                next=set_on_server({"max_prepared_transactions": 64}, restart=True)
                + '; or set strategy = "staged" for this sink, which needs none',
            )
        if isinstance(cause, psycopg.errors.OutOfMemory) and cause.diag.source_function == "MarkAsPreparing":
            return Retryable(
                f"{self._doing}: {cause.diag.message_primary}",
                why=f"{cause.diag.message_hint}; {UNDECIDED}",
                next="start the job again once slots are free; or ALTER SYSTEM SET max_prepared_transactions = N, at "
                "least twice max_participants of all jobs, then restart the server; or set max_participants lower",
            )
        return None


class TwoPhaseCommitter(PostgresCommitter):
    """Commit what tasks prepared, by name, and resolve with the transaction's id what is no longer there."""

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self._opening(epoch) as session:
            history = History.of(session)
            table = ensure_table(session, self._options, self._ctx.sink, schema)
            return Ticket(history, str(table), table.sql, chosen_columns(table, schema)).dump()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        votes = [_Vote.load(committable) for committable in committables]
        doing = f"commit epoch {epoch} in table {self._options.name}"
        with self._using(doing, _DECIDED) as session:
            here = History.of(session)  # before the list: a standby lists none until it is promoted
            there = list_prepared(session, [vote.gid for vote in votes])
            mine = [there[vote.gid] for vote in votes if vote.gid in there and vote.is_of(there[vote.gid])]
            done = finish(session, "COMMIT", mine, f"sink {self._ctx.sink}: {doing}")
            return [
                Committed() if vote.gid in done else _resolve(session, vote, here, there.get(vote.gid))
                for vote in votes
            ]


def _resolve(session: psycopg.Connection, vote: _Vote, here: History, listed: Prepared | None) -> Outcome:
    """Return what became of a participant that this call did not commit."""
    if listed is not None and not vote.is_of(listed):
        return Unknown(f"{vote} is not the one that is prepared here: that has transaction id {listed.xid}")
    if not here.is_same_place(vote.history):
        return Unknown(f"{vote} was prepared at {vote.history}, and this server is {here}")
    if here.timeline != vote.history.timeline:
        return Unknown(
            f"{vote} is gone from {here}, and was prepared on timeline {vote.history.timeline}: a failover or a "
            f"restore lies between, and transaction id {vote.xid} may name another transaction since"
        )
    try:
        row = session.execute("SELECT pg_xact_status(%s::text::xid8)", (str(vote.xid),)).fetchone()
    except psycopg.errors.InvalidParameterValue as error:
        return Unknown(f"{vote} is gone from {here}, and the server never gave out that id: {shown(error)}")
    assert row is not None
    status: str | None = row[0]
    answer = f"pg_xact_status({vote.xid}) = {'NULL' if status is None else repr(status)}"
    if status == "committed":
        return AlreadyCommitted()
    if status == "aborted":
        return Lost(f"{vote} is gone from {here}, and was rolled back: {answer}")
    if status is None:
        return Unknown(f"{vote} is gone from {here}, and the server no longer knows what became of it: {answer}")
    raise Retryable(f"{vote} is not prepared, and not ended", why=f"{answer}; {_DECIDED}", next=AGAIN)
