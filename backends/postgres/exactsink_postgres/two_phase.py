"""Strategy `two_phase`: tasks prepare transactions, and the decision commits what they prepared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Committer,
    ExactsinkError,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Outcome,
    Retryable,
    Txn,
    Undecided,
    Unknown,
    Writer,
)
from exactsink_postgres.load import PAYLOAD_VERSION, Load, Ticket, payload_of
from exactsink_postgres.opening import open_table
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight import findings
from exactsink_postgres.prepared import Prepared, finish, list_prepared, same_xid
from exactsink_postgres.server import UNDECIDED, History
from exactsink_postgres.session import KeptSession
from exactsink_postgres.sweeping import list_in_doubt, roll_back
from exactsink_postgres.tables import chosen_columns

__all__ = ["TwoPhaseCommitter", "TwoPhaseWriter"]

_DECIDED = "the epoch is decided, and is committed again; no row is lost"


@dataclass(frozen=True, slots=True)
class _Vote:
    """What a participant's payload says: its transaction's id, and where that has a meaning."""

    gid: str
    xid: int
    history: History

    def dump(self) -> bytes:
        history = {"system": self.history.system, "database": self.history.database, "timeline": self.history.timeline}
        return json.dumps({"xid": self.xid, **history}).encode()

    @classmethod
    def load(cls, committable: Committable) -> _Vote:
        voted = payload_of(committable)
        return cls(committable.txn.id, voted.pop("xid"), History(**voted))

    def __str__(self) -> str:
        return f"prepared transaction {self.gid} (transaction id {self.xid})"


class TwoPhaseWriter(Writer):
    """COPY into the table itself, in a transaction that is prepared under the participant's id."""

    def __init__(self, options: PostgresOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._txn = txn
        reported = Ticket.load(ticket)
        self._doing = f"sink {txn.sink}: prepare epoch {txn.epoch} in table {reported.table}"
        self._load = Load(options.server, txn, schema, reported, options.lock_timeout_seconds)

    def write(self, batch: pa.RecordBatch) -> None:
        self._load.write(batch)

    def pre_commit(self) -> Committable:
        load = self._load
        try:
            rows = load.finish()
            vote = _Vote(self._txn.id, load.xid, load.history)
            self._prepare(load)
        finally:
            load.close()
        return Committable(self._txn, rows, vote.dump(), PAYLOAD_VERSION)

    def abort(self) -> None:
        self._load.close()

    def _prepare(self, load: Load) -> None:
        """Prepare. The server says ROLLBACK, and no error, where the transaction was broken before."""
        statement = sql.SQL(load.tag + " PREPARE TRANSACTION {}").format(sql.Literal(self._txn.id))
        try:
            with load.explained():
                answer = load.connection.execute(statement).statusmessage
        except ExactsinkError as error:
            raise self._refused(error) from error.__cause__
        if answer != "PREPARE TRANSACTION":
            raise Retryable(
                f"{self._doing}: the server answered {answer}",
                why=f"the transaction was broken before it could be prepared; {UNDECIDED}",
                next="see the server's log; where a connection pooler is in between, connect past it",
            )

    def _refused(self, error: ExactsinkError) -> ExactsinkError:
        """Explain what a server answers that has no slot to prepare in."""
        cause = error.__cause__
        if isinstance(cause, psycopg.errors.ObjectNotInPrerequisiteState):
            return Fatal(
                f"{self._doing}: {cause.diag.message_primary}",
                why="max_prepared_transactions is 0 on this server",
                next="ALTER SYSTEM SET max_prepared_transactions = 64, then restart the server; "
                'or set strategy = "staged" for this sink, which needs none',
            )
        if isinstance(cause, psycopg.errors.OutOfMemory) and cause.diag.source_function == "MarkAsPreparing":
            return Retryable(
                f"{self._doing}: {cause.diag.message_primary}",
                why=f"{cause.diag.message_hint}; {UNDECIDED}",
                next="start the job again once slots are free; or ALTER SYSTEM SET max_prepared_transactions = N, at "
                "least twice max_participants of all jobs, then restart the server; or set max_participants lower",
            )
        return error


class TwoPhaseCommitter(Committer):
    """Commit what tasks prepared, by name, and settle with the transaction's id what is no longer there."""

    def __init__(self, options: PostgresOptions, ctx: JobContext) -> None:
        self._options = options
        self._ctx = ctx
        name = f"exactsink {ctx.job}.{ctx.sink} driver"
        self._session = KeptSession(options.server, name, options.lock_timeout_seconds)

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self._session.use(f"sink {self._ctx.sink}: check table {self._options.name}") as connection:
            return list(findings(self._options, self._ctx, connection, schema, participants))

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self._session.use(f"sink {self._ctx.sink}: open epoch {epoch}", "the epoch has not begun") as connection:
            history = History.of(connection)
            table = open_table(connection, self._options, self._ctx, epoch, schema)
            return Ticket(history, str(table), table.sql, chosen_columns(table, schema)).dump()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        votes = [_Vote.load(committable) for committable in committables]
        doing = f"sink {self._ctx.sink}: commit epoch {epoch} in table {self._options.name}"
        with self._session.use(doing, _DECIDED) as connection:
            here = History.of(connection)  # before the list: a standby lists none until it is promoted
            there = list_prepared(connection, [vote.gid for vote in votes])
            mine = [there[vote.gid] for vote in votes if vote.gid in there and _is_of(there[vote.gid], vote)]
            done = finish(connection, "COMMIT", mine, doing)
            return [
                Committed() if vote.gid in done else self._settle(connection, vote, here, there.get(vote.gid), doing)
                for vote in votes
            ]

    def abort(self, undecided: Undecided) -> None:
        refs = [participant.ref for participant in undecided]
        doing = f"sink {self._ctx.sink}: roll back {len(refs)} undecided participants"
        with self._session.use(doing, "they are undecided, and stay so") as connection:
            roll_back(connection, self._ctx.job, self._ctx.sink, refs, doing)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._session.use(f"sink {self._ctx.sink}: list what is in doubt") as connection:
            return list_in_doubt(connection, self._ctx.job, self._ctx.sink)

    def close(self) -> None:
        self._session.close()

    def _settle(
        self, connection: psycopg.Connection, vote: _Vote, here: History, listed: Prepared | None, doing: str
    ) -> Outcome:
        """Return what became of a participant that this call did not commit."""
        if listed is not None and not _is_of(listed, vote):
            return Unknown(f"{vote} is not the one that is prepared here: that has transaction id {listed.xid}")
        if not here.is_same_place(vote.history):
            return Unknown(f"{vote} was prepared at {vote.history}, and this server is {here}")
        if here.timeline != vote.history.timeline:
            return Unknown(
                f"{vote} is gone from {here}, and was prepared on timeline {vote.history.timeline}: a failover or a "
                f"restore lies between, and transaction id {vote.xid} may name another transaction since"
            )
        try:
            status = _status(connection, vote.xid)
        except psycopg.errors.InvalidParameterValue as error:
            said = f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"
            return Unknown(f"{vote} is gone from {here}, and the server never gave out that id: {said}")
        answer = f"pg_xact_status({vote.xid}) = {'NULL' if status is None else repr(status)}"
        if status == "committed":
            return AlreadyCommitted()
        if status == "aborted":
            return Lost(f"{vote} is gone from {here}, and was rolled back: {answer}")
        if status is None:
            return Unknown(f"{vote} is gone from {here}, and the server no longer knows what became of it: {answer}")
        raise Retryable(f"{doing}: {vote} is not prepared, and not ended", why=answer, next="start the job again")


def _is_of(listed: Prepared, vote: _Vote) -> bool:
    return same_xid(listed.xid, vote.xid)


def _status(connection: psycopg.Connection, xid: int) -> str | None:
    row = connection.execute("SELECT pg_xact_status(%s::text::xid8)", (str(xid),)).fetchone()
    assert row is not None
    status: str | None = row[0]
    return status
