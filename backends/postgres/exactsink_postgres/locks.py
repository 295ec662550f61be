"""Who holds the lock that a session waits for: asked while it waits, as the server forgets it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import psycopg

from exactsink.contract import ExactsinkError, Fatal, Retryable, Txn
from exactsink_postgres.commands import AGAIN, end_prepared, end_session
from exactsink_postgres.errors import explained

__all__ = ["TAG", "Blocker", "LockWatch", "Waiting"]

TAG = "/* exactsink {} */"
"""Begins the statements of a session that writes for a participant."""

_Answer = TypeVar("_Answer")
_BEFORE, _AFTER = TAG.split("{}")
_LOOKS = 4  # within one lock timeout
_SHOWN = 3

# pg_locks names a session's transaction by the session, a prepared one by a virtual id alone: its own lock on the id
# that it got reports the rest. pg_blocking_pids says 0 for it.
_HOLDERS = """
    locks AS (SELECT * FROM pg_locks WHERE granted),
    holders AS (
        SELECT own.virtualtransaction AS holder, prepared.gid, prepared.prepared
        FROM locks AS own JOIN pg_prepared_xacts AS prepared ON prepared.transaction = own.transactionid
        WHERE own.pid IS NULL AND own.locktype = 'transactionid'
    )
"""
# A relation's lock is held in a mode, and blocks some of the others only. A session that only stands before us in the
# queue comes last.
_WHO = f"""
    WITH {_HOLDERS}, waits AS (SELECT * FROM pg_locks WHERE pid = %(pid)s AND NOT granted),
    held AS (
        SELECT held.virtualtransaction AS holder FROM waits JOIN locks AS held
        ON held.pid IS NULL AND held.locktype = waits.locktype
            AND (held.database, held.relation, held.page, held.tuple, held.transactionid)
                IS NOT DISTINCT FROM (waits.database, waits.relation, waits.page, waits.tuple, waits.transactionid)
            AND CASE WHEN waits.locktype <> 'relation' OR waits.mode = 'AccessExclusiveLock' THEN true
                WHEN waits.mode = 'RowExclusiveLock' THEN held.mode = ANY (
                    ARRAY ['ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'])
                ELSE held.mode IN ('ExclusiveLock', 'AccessExclusiveLock') END
    )
    SELECT gid, NULL::int, extract(epoch FROM clock_timestamp() - prepared)::float8, 0 AS rank
    FROM held JOIN holders USING (holder)
    UNION ALL
    SELECT holder.query, holder.pid, extract(epoch FROM clock_timestamp() - holder.xact_start)::float8,
        1 + (holder.wait_event_type IS NOT DISTINCT FROM 'Lock')::int
    FROM pg_stat_activity AS holder WHERE holder.pid = ANY (pg_blocking_pids(%(pid)s))
    ORDER BY rank LIMIT 1
"""
_ON_TABLE = f"""
    WITH {_HOLDERS}, held AS (
        SELECT DISTINCT virtualtransaction AS holder, pid FROM locks
        WHERE locktype = 'relation' AND relation = to_regclass(%(relation)s) AND pid IS DISTINCT FROM %(pid)s
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND mode NOT IN ('AccessShareLock', 'RowShareLock')
    )
    SELECT gid, NULL::int, extract(epoch FROM now() - prepared)::float8 AS age
    FROM held JOIN holders USING (holder) WHERE pid IS NULL
    UNION ALL
    SELECT query, pid, extract(epoch FROM now() - xact_start)::float8 FROM held JOIN pg_stat_activity USING (pid)
    ORDER BY age DESC
"""
_SESSIONS = """
    SELECT query, pid, extract(epoch FROM clock_timestamp() - xact_start)::float8
    FROM pg_stat_activity WHERE pid = ANY (%(pids)s) AND starts_with(query, %(tag)s)
"""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that holds a lock: prepared, when there is no `pid`. `gid` names one of ours, or a prepared one."""

    gid: str | None
    pid: int | None
    age_seconds: float | None

    @classmethod
    def of(cls, named: str | None, pid: int | None, age_seconds: float | None, *_: object) -> Blocker:
        """Read a row; a session's statement names the participant that it is for, when it is one of ours."""
        if pid is not None:
            ours = named is not None and named.startswith(_BEFORE) and _AFTER in named
            named = str(named)[len(_BEFORE) :].split(_AFTER, 1)[0] if ours else None
        return cls(named, pid, age_seconds)

    def __str__(self) -> str:
        age = "" if self.age_seconds is None else f", {self.age_seconds:.0f} s old"
        if self.pid is None:
            return f"prepared transaction {self.gid}{age}"
        return f"session {self.pid}{f' of {self.gid}' if self.gid else ''}{age}"

    @property
    def ended_by(self) -> str:
        """Return the statements that end it."""
        return end_session(self.pid) if self.pid is not None else end_prepared(self.gid or "")


class Waiting(NamedTuple):
    """Who waits for a lock, for messages: `doing` what, and how `safe` the rows are; `mine` is None after a decision.

    `relation` is the table written to, quoted, with these `columns`. A driver's `mine` has partition -1.
    """

    doing: str
    safe: str
    relation: str = ""
    mine: Txn | None = None
    columns: Sequence[str] = ()


class LockWatch:
    """Looks, through a session of its own, whenever one call on a session has waited a quarter of the lock timeout.

    `generator` is wrapped around what psycopg waits for, so calls that are answered at once cost nothing.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection], pid: int, lock_timeout_seconds: float) -> None:
        self._connect = connect
        self._pid = pid
        self._timeout = lock_timeout_seconds
        self._seen: tuple[float, Blocker] | None = None

    def generator(self, waited_for: Generator[Any, Any, _Answer]) -> Generator[Any, Any, _Answer]:
        """Pass on what psycopg's `waited_for` wants and gets; a tick without an answer is time to look."""
        looked = time.monotonic()
        try:
            wants = next(waited_for)
            while True:
                ready = yield wants
                if not ready and time.monotonic() - looked >= self._timeout / _LOOKS:
                    looked = time.monotonic()
                    found = self._ask(_WHO, pid=self._pid)
                    self._seen = (looked, found[0]) if found else self._seen
                wants = waited_for.send(ready)
        except StopIteration as end:
            answer: _Answer = end.value
            return answer

    def error(self, error: BaseException | None, waiting: Waiting) -> ExactsinkError | None:
        """Return the error that names who held the lock; None for an error of another kind, or an unknown deadlock."""
        blocker = None
        if isinstance(error, psycopg.errors.DeadlockDetected):
            blocker = self._of_deadlock(error.diag.message_detail or "")
            return None if blocker is None else _blocked(blocker, waiting)
        if not isinstance(error, psycopg.errors.LockNotAvailable):
            return None
        # That wait lasted for the whole timeout: who was seen within it held this lock, no earlier one.
        if self._seen is not None and time.monotonic() - self._seen[0] <= self._timeout:
            return _blocked(self._seen[1], waiting)
        return _timed_out(self._ask(_ON_TABLE, relation=waiting.relation, pid=self._pid), waiting)

    def _of_deadlock(self, detail: str) -> Blocker | None:
        """Return another writer of ours that the server's words on a deadlock name, if it lives."""
        words = detail.replace(";", " ").replace(".", " ").replace(",", " ").split()  # in whatever language
        pids = [pid for word in words if word.isdecimal() and self._pid != (pid := int(word)) < 1 << 31]
        found = self._ask(_SESSIONS, pids=pids, tag=_BEFORE)
        return found[0] if found else None

    def _ask(self, query: str, **parameters: object) -> list[Blocker]:
        """Ask in a new session; what can't be asked now stays unknown."""
        with suppress(ExactsinkError), self._connect() as session, explained("ask who holds a lock"):
            return [Blocker.of(*row) for row in session.execute(query.encode(), parameters).fetchall()]
        return []


def _blocked(blocker: Blocker, waiting: Waiting) -> ExactsinkError:
    """Return the error for a participant, or a driver, whose lock did not come."""
    what, mine, safe = f"{waiting.doing}: blocked by {blocker}", waiting.mine, waiting.safe
    if mine is None:
        return Retryable(what, why=safe, next=f"end it ({blocker.ended_by}), or wait; then {AGAIN}")
    other = None if blocker.gid is None else Txn.parse(blocker.gid)
    if other is None:
        fix = f"let its owner end it ({blocker.ended_by}), or wait; then {AGAIN}"
        return Retryable(what, why=f"it is not this job's; {safe}", next=fix)
    if other.job != mine.job:
        fix = f"start job {other.job}, which commits or rolls back what it prepared, or wait; then {AGAIN}"
        return Retryable(what, why=f"it is job {other.job}'s; {safe}", next=fix)
    if other.generation < mine.generation:
        return Retryable(what, why="an earlier driver of this job began it; the next start rolls it back", next=AGAIN)
    if other.generation > mine.generation or (mine.token and other.token != mine.token):
        why = "another driver has claimed this job, or one with another journal uses its name"
        return Retryable(what, why=why, next="leave the job to that driver; `exactsink status` shows it")
    if other.epoch == mine.epoch and other.sink != mine.sink:
        why = f"sinks {other.sink} and {mine.sink} write rows with the same unique key into one table"
        return Fatal(what, why=why, next="filter the rows of one sink (where), or take one of the sinks out")
    if other.epoch == mine.epoch and other.partition != mine.partition and mine.partition >= 0:
        return Fatal(
            what,
            why=f"partitions {other.partition} and {mine.partition} of this epoch hold rows with the same unique key",
            next='set distribution = "hash(key)" for this sink, with the columns of the key: rows of one key then come '
            "together, and the server names them; or drop the doubles before it "
            f"(columns: {', '.join(waiting.columns)})",
        )
    why = "it is an earlier attempt of this job's own; the next start rolls it back"
    return Retryable(what, why=why, next=AGAIN)


def _timed_out(writers: Sequence[Blocker], waiting: Waiting) -> ExactsinkError:
    """Return the error where nobody saw the lock's holder, with those that have written to the table, oldest first.

    Whoever held a lock on a row of it may be one of them, and may have ended.
    """
    some = "; ".join(map(str, writers[:_SHOWN])) + ("; ..." if len(writers) > _SHOWN else "")
    why = f"one of these may hold it: {some}" if writers else "whoever held it was gone before it could be named"
    return Retryable(f"{waiting.doing}: a lock did not come in time", why=f"{why}; {waiting.safe}", next=AGAIN)
