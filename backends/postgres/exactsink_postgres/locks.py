"""Who holds the lock that a session waits for: asked while it waits, as the server forgets it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from exactsink.contract import ExactsinkError, Fatal, Retryable, Txn
from exactsink_postgres.server import CONNECT_SECONDS, UNDECIDED, Server, explained

__all__ = ["LOOKS", "TAG", "Blocker", "LockWatch", "blocked", "timed_out", "writer_of"]

TAG = "/* exactsink {} */"
"""Begins the statements of a session that writes for a participant."""

LOOKS = 4
"""How often the watch may look within one lock timeout."""

_AGAIN = "start the job again"
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


def writer_of(query: str | None) -> str | None:
    """Return the participant that a session's statement is for, None when it is no statement of ours."""
    before, after = TAG.split("{}")
    if query is None or not query.startswith(before) or after not in query:
        return None
    return query[len(before) :].split(after, 1)[0]


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that holds a lock: prepared, when there is no `pid`. `gid` names one of ours, or a prepared one."""

    gid: str | None
    pid: int | None
    age_seconds: float | None

    def __str__(self) -> str:
        age = "" if self.age_seconds is None else f", {self.age_seconds:.0f} s old"
        if self.pid is None:
            return f"prepared transaction {self.gid}{age}"
        return f"session {self.pid}{f' of {self.gid}' if self.gid else ''}{age}"

    @property
    def ended_by(self) -> str:
        """Return the statements that end it."""
        if self.pid is not None:
            return f"SELECT pg_terminate_backend({self.pid})"
        gid = (self.gid or "").replace("'", "''")
        return f"COMMIT PREPARED '{gid}' or ROLLBACK PREPARED '{gid}'"


class LockWatch:
    """Looks, from a thread with a session of its own, when a call on the watched session takes long.

    Calls that take less than a quarter of the lock timeout cost nothing but the thread, which `close` ends.
    """

    def __init__(self, server: Server, pid: int, lock_timeout_seconds: float) -> None:
        self._server = server
        self._pid = pid
        self._timeout = lock_timeout_seconds
        self._seen: tuple[float, Blocker] | None = None
        self._calls = 0
        self._at_work = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def blocker(self) -> Blocker | None:
        """Return who held the lock whose timeout has just ended a call, None when nobody was seen."""
        # That wait lasted for the whole timeout: who was seen within it held this lock, no earlier one.
        if self._seen is None or time.monotonic() - self._seen[0] > self._timeout:
            return None
        return self._seen[1]

    @contextmanager
    def working(self) -> Iterator[None]:
        """Return that a call is under way."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="exactsink-locks", daemon=True)
            self._thread.start()
        self._calls += 1
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def close(self) -> None:
        """End the thread. Idempotent. It may be waiting for a server that doesn't answer: then it ends by itself."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(2 * CONNECT_SECONDS)

    def of_deadlock(self, detail: str) -> Blocker | None:
        """Return another writer of ours that the server's words on a deadlock name, if it lives."""
        words = detail.replace(";", " ").replace(".", " ").replace(",", " ").split()  # in whatever language
        pids = [pid for word in words if word.isdecimal() and self._pid != (pid := int(word)) < 1 << 31]
        found: list[Blocker] = []
        with suppress(ExactsinkError):
            found = self._ask(_SESSIONS, pids=pids, tag=TAG.split("{}")[0])
        return found[0] if found else None

    def writers_to(self, relation: str) -> list[Blocker]:
        """Return all others that have changed a table and not ended yet, the oldest first: whoever held a lock on a row
        of it may be one of them, and may have ended.
        """
        with suppress(ExactsinkError):
            return self._ask(_ON_TABLE, relation=relation, pid=self._pid)
        return []

    def _watch(self) -> None:
        seen = 0
        while not self._closed.wait(self._timeout / LOOKS):
            if self._at_work and self._calls == seen:
                started = time.monotonic()
                with suppress(ExactsinkError):  # what can't be asked now stays unknown
                    found = self._ask(_WHO, pid=self._pid)
                    self._seen = (started, found[0]) if found else self._seen
            seen = self._calls

    def _ask(self, query: str, **parameters: object) -> list[Blocker]:
        with self._server.connect("exactsink: who holds a lock") as session, explained("ask who holds a lock"):
            rows = session.execute(query.encode(), parameters).fetchall()
        return [Blocker(writer_of(named) if pid else named, pid, age) for named, pid, age, *_ in rows]


def blocked(doing: str, mine: Txn, blocker: Blocker, columns: Sequence[str] = ()) -> ExactsinkError:
    """Return the error for a participant, or a driver (`partition` -1), whose lock did not come."""
    what = f"{doing}: blocked by {blocker}"
    other = None if blocker.gid is None else Txn.parse(blocker.gid)
    if other is None:
        fix = f"let its owner end it ({blocker.ended_by}), or wait; then {_AGAIN}"
        return Retryable(what, why=f"it is not this job's; {UNDECIDED}", next=fix)
    if other.job != mine.job:
        fix = f"start job {other.job}, which commits or rolls back what it prepared, or wait; then {_AGAIN}"
        return Retryable(what, why=f"it is job {other.job}'s; {UNDECIDED}", next=fix)
    if other.generation < mine.generation:
        return Retryable(what, why="an earlier driver of this job began it; the next start rolls it back", next=_AGAIN)
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
            f"together, and the server names them; or drop the doubles before it (columns: {', '.join(columns)})",
        )
    why = "it is an earlier attempt of this job's own; the next start rolls it back"
    return Retryable(what, why=why, next=_AGAIN)


def timed_out(doing: str, writers: Sequence[Blocker]) -> ExactsinkError:
    """Return the error where nobody saw the lock's holder, with those that have written to the table."""
    some = "; ".join(map(str, writers[:_SHOWN])) + ("; ..." if len(writers) > _SHOWN else "")
    why = f"one of these may hold it: {some}" if writers else "whoever held it was gone before it could be named"
    return Retryable(f"{doing}: a lock did not come in time", why=f"{why}; {UNDECIDED}", next=_AGAIN)
