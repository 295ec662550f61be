"""The driver's side of both strategies: the kept session, the check, the mark, and the sweep of undecided work.

A sink's participants are prepared transactions in its database, and sessions that still write. Foreign ones are never
touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Literal

import psycopg
import pyarrow as pa
from psycopg import sql

from exactsink.contract import (
    Audit,
    Committable,
    Committer,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Mark,
    Retryable,
    Txn,
    Undecided,
)
from exactsink.toolkit.sql import counted_by, quoted
from exactsink_postgres.blocks import held_by
from exactsink_postgres.errors import AGAIN, shown
from exactsink_postgres.locks import SEEN, TAG, Waiting, end_session
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.own_tables import Marks
from exactsink_postgres.preflight import Asks, findings
from exactsink_postgres.preflight_table import unjudged
from exactsink_postgres.server import KeptSession, Session
from exactsink_postgres.tables import Table, chosen_columns, read_table
from exactsink_postgres.type_mapping import Column
from exactsink_postgres.validator import RowRules

__all__ = ["END_SECONDS", "UNBEGUN", "PostgresCommitter", "SinkSession", "check_owners", "finish", "list_prepared"]

UNBEGUN = "the epoch has not begun"

END_SECONDS = 10
"""How long to wait for the end of a terminated session."""

_SCHEMA = """SELECT pg_is_in_recovery(), coalesce((SELECT nspname FROM pg_class AS class JOIN pg_namespace AS space
        ON space.oid = class.relnamespace WHERE class.oid = to_regclass(%s)), %s, current_schema())"""
_BEFORE, _AFTER = TAG.split("{}")
_LIST = "SELECT gid, owner FROM pg_prepared_xacts WHERE gid = ANY (%s) AND database = current_database()"
_WRITING = rf"""
    SELECT split_part(query, ' ', 3) AS ref, pid, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age
    FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
        AND {SEEN} AND starts_with(query, %(before)s || %(prefix)s)"""
_PREPARED = """SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
    WHERE database = current_database() AND starts_with(gid, %(prefix)s)"""
_END = f"""SELECT ref, pid, pg_terminate_backend(pid, {END_SECONDS * 1000}) FROM ({_WRITING}) AS writing
    WHERE ref = ANY (%(refs)s)"""
_ROLE = "SELECT current_user::text, rolsuper FROM pg_roles WHERE rolname = current_user"
_STAYS = "{}: prepared transaction {} stays"
_MAY_BE_LEFT = (
    psycopg.errors.UndefinedObject,  # somebody else ended it
    psycopg.errors.ObjectNotInPrerequisiteState,  # somebody else is about to
    psycopg.errors.InsufficientPrivilege,
)
_NO_PIPELINE = (
    psycopg.NotSupportedError,  # by this libpq
    psycopg.errors.ActiveSqlTransaction,  # by this server: two of them don't fit into one pipeline
)


class SinkSession:
    """A driver's session for one sink, kept from call to call, with the queries that all strategies share."""

    def __init__(self, options: PostgresOptions, ctx: JobContext) -> None:
        self._options = options
        self.ctx = ctx
        name = f"exactsink {ctx.job}.{ctx.sink} driver"
        self._session = KeptSession(options.server, name, options.lock_timeout_seconds)
        self._known = {"before": _BEFORE, "prefix": f"{ctx.job}.{ctx.sink}."}

    def close(self) -> None:
        self._session.close()

    def using(self, doing: str, safe: str = "", epoch: int = -1) -> AbstractContextManager[Session]:
        """Return the kept session for a call; the server's errors become ours, a lock's with its holder.

        `safe` is UNBEGUN where an epoch is opened: who holds the lock may be of this job then.
        """
        ctx = self.ctx
        mine = Txn(ctx.job, epoch, ctx.sink, ctx.generation, "", -1, -1) if safe == UNBEGUN else None
        return self._session.use(Waiting(f"sink {ctx.sink}: {doing}", safe, self._options.name.sql, mine))

    def schema(self, session: Session) -> str:
        """Return the schema of the sink's table, even if the table does not exist. Raises Retryable on a standby."""
        ((standby, schema),) = session.run(_SCHEMA, self._options.name.sql, self._options.name.schema).fetchall()
        if standby:
            raise Retryable(
                f"sink {self.ctx.sink}: the server is a standby",
                why="it may lag behind, and lists no prepared transaction",
                next=f"connect to the primary (target_session_attrs=read-write in conninfo), then {AGAIN}",
            )
        return str(schema)

    def marks(self, session: Session, schema: str = "") -> Marks:
        """Return the sink's marks, which are in the schema of its table. Raises Retryable on a standby."""
        ctx = self.ctx
        return Marks(session, schema or self.schema(session), ctx.job, ctx.sink, ctx.lineage)

    def listed(self, session: Session) -> list[InDoubt]:
        """List this sink's participants in this database, including those that still write; ages are in seconds."""
        # In this order: who prepares between the two listings is in the second one.
        rows = [(ref, age) for ref, _, age in session.execute(_WRITING, self._known).fetchall()]
        rows += session.execute(_PREPARED, self._known).fetchall()
        known = [(txn, age) for ref, age in rows if (txn := Txn.parse(ref)) is not None]
        return [InDoubt.of(txn, age_seconds=max(age, 0.0)) for txn, age in known if self._is_own(txn)]

    def held_by(self, session: Session, ref: str) -> Sequence[str]:
        """Return the effects of this sink's participant on others, one sentence each."""
        writing = {name: pid for name, pid, _ in session.execute(_WRITING, self._known).fetchall()}
        return held_by(session, ref, writing.get(ref))

    def roll_back(self, session: Session, refs: Sequence[str]) -> None:
        """End the sessions that write for these participants, then roll back their prepared work. Idempotent.

        Raises ValueError, before it does anything, for a ref that is not this sink's; Retryable if one can't be ended.
        """
        for ref in refs:
            txn = Txn.parse(ref)
            if txn is None or not self._is_own(txn):
                raise ValueError(f"{ref!r} is not a participant of sink {self.ctx.sink} of job {self.ctx.job}")
        doing = f"sink {self.ctx.sink}: roll back"
        asked = session.execute(_END, {**self._known, "refs": list(refs)}).fetchall()
        writing = {ref: pid for ref, pid, _ in session.execute(_WRITING, self._known).fetchall() if ref in refs}
        finish(session, "ROLLBACK", list_prepared(session, refs), doing)
        for ref, pid in writing.items():
            raise Retryable(
                f"{doing}: session {pid} still writes for {ref}",
                why=f"exactsink ended it, and it did not stop within {END_SECONDS} s" if asked else "it began only now",
                next=f"{AGAIN}; or end it: {end_session(pid)}",
            )

    def _is_own(self, txn: Txn) -> bool:
        return (txn.job, txn.sink) == (self.ctx.job, self.ctx.sink)


class PostgresCommitter(SinkSession, Committer):
    """The part that the committers of all strategies share."""

    _overwrites = False
    """Whether later epochs go over rows of earlier ones."""

    def __init__(self, options: PostgresOptions, ctx: JobContext) -> None:
        super().__init__(options, ctx)
        self._read: tuple[Marks, Mark | None] | None = None  # the mark that was read last, and where

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        return self.check(None, participants)

    def check(self, schema: pa.Schema | None, participants: int | None) -> Iterable[Finding]:
        with self.using(f"check table {self._options.name}") as session:
            asks = self._asks(session, schema)
            found = list(findings(self._options, self.ctx, session, schema, participants, asks))
            if None not in (self.ctx.quarantine, schema) and not any(one.severity == "error" for one in found):
                found += unjudged(session, self._options, schema, upserts=self._overwrites)
            return found

    def _asks(self, session: Session, schema: pa.Schema | None) -> Asks | None:
        """Return extra checks of table and settings, if the strategy needs more than rows that are appended do."""
        return None

    def row_rules(self, schema: pa.Schema) -> bytes:
        with self.using("read the columns of its table") as session:
            table = read_table(session, self._options.name)
            if table is None:
                raise Fatal(f"sink {self.ctx.sink}: table {self._options.name} is gone", next="bring it back")
            return RowRules(str(table), self._judged(table, schema)).dump()

    def _judged(self, table: Table, schema: pa.Schema) -> dict[str, Column]:
        """Return the columns that rows are compared with, by the rows' names."""
        return dict(zip(schema.names, chosen_columns(table, schema), strict=True))

    def in_doubt(self) -> Iterable[InDoubt]:
        with self.using("list the participants in doubt") as session:
            return list({participant.ref: participant for participant in self.listed(session)}.values())

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        txn = Txn.parse(participant.ref)
        if txn is None or not self._is_own(txn):
            return []
        with self.using(f"find the sessions that {txn.id} blocks") as session:
            return self.held_by(session, txn.id)

    def abort(self, undecided: Undecided) -> None:
        refs = [participant.ref for participant in undecided]
        with self.using(f"roll back {len(refs)} undecided participants", "they stay undecided") as session:
            self.roll_back(session, refs)

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        column, table = self.ctx.epoch_column, self._options.name
        if column is None:
            return {}
        with self.using(f"count the rows of table {table} by {column}") as session:
            counted = dict(session.run(counted_by(quoted(column), table.sql, min(epochs))).fetchall())
        return Audit.by_column(column, counted, epochs, at_most=self._overwrites)

    def mark(self) -> Mark | None:
        with self.using("read its mark") as session:
            self._read = None
            self._read = self._last(session)
            return self._read[1]

    def put_birth(self) -> Mark:
        with self.using("bind its target to this journal") as session:
            marks = self.marks(session)
            with session.transaction():
                marks.create()
                marks.put_birth()
        mark = self.mark()
        assert mark is not None
        return mark

    def trim_marks(self) -> None:
        with self.using("trim its marks") as session:
            self._last(session)[0].trim()

    def _seen(self, session: Session, doing: str) -> tuple[Marks, Mark | None]:
        """Return the mark that this session has read last.

        Raises Retryable when the mark may be another server's: another session has read it, or a pooler
        leads to a server now that has not got so far.
        """
        what = f"sink {self.ctx.sink}: {doing}: the session that had read the mark is lost"
        if self._read is not None and self._read[0].session is not session:
            why = "a new one may reach another server, for example after a failover, so its mark must be read first"
            raise Retryable(what, why=why, next=AGAIN)
        marks, mark = self._last(session)
        if session.pooled and mark is not None:
            now = marks.newest()
            if now is None or now.lineage != mark.lineage or _epoch(now) < _epoch(mark):
                why = f"the mark was {mark}, and is {now}: the pooler leads to another server, which lags behind"
                raise Retryable(what, why=why, next=AGAIN)
        return marks, mark

    def _is_marked(self, marks: Marks, seen: Mark | None, epoch: int) -> bool:
        """Return whether the epoch is marked. Raises Retryable for another mark than was seen."""
        stands = marks.newest()
        done = stands is not None and stands.epoch is not None and stands.epoch >= epoch
        if done and stands is not None and stands.lineage == self.ctx.lineage:
            return True
        if done or stands != seen:
            what = f"sink {self.ctx.sink}: the mark is not that of the epoch before {epoch}"
            raise Retryable(what, why=f"it was {seen}, and is {stands}; nothing was applied", next=AGAIN)
        return False

    def _last(self, session: Session) -> tuple[Marks, Mark | None]:
        """Return the mark that this session read last, with its reader. If it has read none, it reads the mark now."""
        if self._read is not None and self._read[0].session is session:
            return self._read
        marks = self.marks(session)
        return marks, marks.newest()

    def _fed_by(self, session: Session) -> str | None:
        """Return the journal that the newest mark names; create the table of marks if there is no mark."""
        marks, mark = self._last(session)
        if mark is None:
            with session.transaction():
                marks.create()
        return None if mark is None else mark.lineage


def _epoch(mark: Mark) -> int:
    return -1 if mark.epoch is None else mark.epoch


def list_prepared(connection: psycopg.Connection, gids: Iterable[str]) -> dict[str, str]:
    """Return the `gids` that are prepared in this database, each with the role that may end it."""
    return dict(connection.execute(_LIST, (list(gids),)).fetchall())


def check_owners(session: Session, prepared: Mapping[str, str], doing: str) -> None:
    """Raise Fatal where a prepared transaction belongs to a role that this one may not end it for."""
    ((mine, may_all),) = session.execute(_ROLE).fetchall()
    for gid, owner in prepared.items():
        if owner != mine and not may_all:
            raise _not_ours(gid, owner, f"this is role {mine}", doing)


def finish(session: Session, how: Literal["COMMIT", "ROLLBACK"], gids: Iterable[str], doing: str) -> set[str]:
    """Commit or roll back prepared transactions in one round trip. Return the gids that this call ended.

    An error stops the pipeline, and the rest is ended one by one. A transaction that is gone was ended by somebody
    else, and the caller resolves it. Raises Retryable if one is busy, and Fatal if it belongs to another role, after
    all others have had their turn; also raises psycopg's errors.
    """
    ends = {gid: f"{how} PREPARED {sql.quote(gid)}" for gid in gids}
    sent: list[psycopg.Cursor] = []
    with suppress(*_MAY_BE_LEFT, *_NO_PIPELINE), session.pipeline():
        for end in ends.values():
            sent.append(session.alone(end.encode()))  # one by one, because an error keeps the earlier ones
    done = {gid for gid, answer in zip(ends, sent, strict=False) if answer.statusmessage == f"{how} PREPARED"}
    stuck: dict[str, psycopg.Error] = {}
    for gid in [gid for gid in ends if gid not in done]:
        try:
            session.alone(ends[gid].encode())
            done.add(gid)
        except _MAY_BE_LEFT as error:
            stuck[gid] = error
    there = list_prepared(session, stuck) if stuck else {}
    left = [_left(gid, owner, stuck[gid], doing) for gid, owner in there.items()]
    if left:
        raise max(left, key=lambda error: isinstance(error, Fatal))
    return done


def _left(gid: str, owner: str, error: psycopg.Error, doing: str) -> Fatal | Retryable:
    """Return the error for a transaction that still exists."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return _not_ours(gid, owner, shown(error), doing)
    what = _STAYS.format(doing, gid)
    return Retryable(what, why=f"another session is about to end it: {shown(error)}", next=AGAIN)


def _not_ours(gid: str, owner: str, seen: str, doing: str) -> Fatal:
    return Fatal(
        _STAYS.format(doing, gid),
        why=f"{seen}: role {owner} prepared it, and no other role but a superuser may end it",
        next=f"connect as {owner} (user={owner} in conninfo), as when it was prepared; then start again",
    )
