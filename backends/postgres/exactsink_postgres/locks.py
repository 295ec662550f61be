"""Find who holds the lock that a session waits for, while it waits, because the server forgets it afterwards."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from exactsink.contract import ExactsinkError, Fatal, Retryable, Txn
from exactsink_postgres.errors import AGAIN, advice

__all__ = ["BLOCKS", "HOLDERS", "SEEN", "TAG", "Blocker", "LockWatch", "Waiting", "end_session"]

TAG = "/* exactsink {} */"
"""The beginning of each statement of a session that writes for a participant."""

_Answer = TypeVar("_Answer")
_LOG = logging.getLogger("exactsink")
_LOOKS = 4  # within one lock timeout
_SHOWN = 3
_OURS = r"substring(query FROM '^/\* exactsink (\S+) \*/')"  # whom a session's statement is for
SEEN = "(SELECT set_config('role', 'none', true)) = 'none'"
"""True, and lets its statement see and end sessions of the login role, even if the session acts as another role.

The server shows a session to the role that it logged in as, whatever SET ROLE (ALTER ROLE ... SET role) has changed.
"""
_REPLICATES = "wait_event IS NOT DISTINCT FROM 'SyncRep'"  # it has committed, and waits for a synchronous standby
_STANDBYS = "bring back the synchronous standbys that synchronous_standby_names lists"

# pg_locks names a session's transaction by the session, a prepared one by a virtual id alone: its own lock on the id
# that it got reports the rest. pg_blocking_pids says 0 for it.
HOLDERS = """
    locks AS (SELECT * FROM pg_locks WHERE granted),
    holders AS (
        SELECT own.virtualtransaction AS holder, prepared.gid, prepared.prepared
        FROM locks AS own JOIN pg_prepared_xacts AS prepared ON prepared.transaction = own.transactionid
        WHERE own.pid IS NULL AND own.locktype = 'transactionid'
    )
"""
# A relation's lock has a mode, and blocks only some of the others.
BLOCKS = """
    held.locktype = waits.locktype
    AND (held.database, held.relation, held.page, held.tuple, held.transactionid)
        IS NOT DISTINCT FROM (waits.database, waits.relation, waits.page, waits.tuple, waits.transactionid)
    AND CASE WHEN waits.locktype <> 'relation' OR waits.mode = 'AccessExclusiveLock' THEN true
        WHEN waits.mode = 'RowExclusiveLock' THEN held.mode = ANY (
            ARRAY ['ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'])
        ELSE held.mode IN ('ExclusiveLock', 'AccessExclusiveLock') END
"""
# Rank mere waiters last.
_WHO = f"""
    WITH {HOLDERS}, waits AS (SELECT * FROM pg_locks WHERE pid = %(pid)s AND NOT granted),
    held AS (
        SELECT held.virtualtransaction AS holder FROM waits JOIN locks AS held ON held.pid IS NULL AND {BLOCKS}
    )
    SELECT gid, NULL::int, extract(epoch FROM clock_timestamp() - prepared)::float8, false, 0 AS rank
    FROM held JOIN holders USING (holder)
    UNION ALL
    SELECT {_OURS}, pid, extract(epoch FROM clock_timestamp() - xact_start)::float8, {_REPLICATES},
        1 + (wait_event_type IS NOT DISTINCT FROM 'Lock')::int
    FROM pg_stat_activity WHERE {SEEN} AND (pid = ANY (pg_blocking_pids(%(pid)s)) OR pid = %(pid)s AND {_REPLICATES})
    ORDER BY rank LIMIT 1
"""
_ON_TABLE = f"""
    WITH {HOLDERS}, held AS (
        SELECT DISTINCT virtualtransaction AS holder, pid FROM locks
        WHERE locktype = 'relation' AND relation = to_regclass(%(relation)s) AND pid IS DISTINCT FROM %(pid)s
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND mode NOT IN ('AccessShareLock', 'RowShareLock')
    )
    SELECT gid, NULL::int, extract(epoch FROM now() - prepared)::float8 AS age, false
    FROM held JOIN holders USING (holder) WHERE pid IS NULL
    UNION ALL
    SELECT {_OURS}, pid, extract(epoch FROM now() - xact_start)::float8, {_REPLICATES}
    FROM held JOIN pg_stat_activity USING (pid) WHERE {SEEN}
    ORDER BY age DESC
"""


class Blocker(NamedTuple):
    """A transaction that holds a lock. Without a `pid` it is prepared. `gid` names exactsink's own, or a prepared one.

    One that `replicates` only waits for a synchronous standby. If it were ended now, its commit would exist without the
    standby.
    """

    gid: str | None
    pid: int | None
    age_seconds: float | None
    replicates: bool = False

    def __str__(self) -> str:
        age = "" if self.age_seconds is None else f", {self.age_seconds:.0f} s old"
        if self.pid is None:
            return f"prepared transaction {self.gid}{age}"
        waits = ", which waits for a synchronous standby" if self.replicates else ""
        return f"session {self.pid}{f' of {self.gid}' if self.gid else ''}{age}{waits}"

    @property
    def ended_by(self) -> str:
        """Return how it can be ended."""
        if self.replicates:
            return _STANDBYS
        if self.pid is not None:
            return end_session(self.pid)
        literal = sql.quote(self.gid)
        return f"COMMIT PREPARED {literal} or ROLLBACK PREPARED {literal}"


def end_session(pid: int) -> str:
    return f"SELECT pg_terminate_backend({pid})"


class Waiting(NamedTuple):
    """The session that waits for a lock, for messages.

    `doing` names its call, and `safe` the fate of the rows. `mine` is None after a decision; a driver's has partition
    -1. `relation` is the table that it writes to, quoted, with these `columns`.
    """

    doing: str
    safe: str
    relation: str = ""
    mine: Txn | None = None
    columns: Sequence[str] = ()


class LockWatch:
    """Look for the holder of a lock, in a separate session, each time a call has waited a quarter of the lock timeout.

    `generator` wraps psycopg's waiting, so calls that are answered at once cost nothing.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection], pid: int, lock_timeout_seconds: float) -> None:
        self._connect = connect
        self.pid = pid
        self._timeout = lock_timeout_seconds
        self._seen: tuple[float, Blocker] | None = None
        self._reported = False

    def generator(self, waited_for: Generator[Any, Any, _Answer]) -> Generator[Any, Any, _Answer]:
        """Pass on the requests and answers of psycopg's `waited_for`; after a tick without an answer, look."""
        looked = time.monotonic()
        try:
            wants = next(waited_for)
            while True:
                ready = yield wants
                if not ready and time.monotonic() - looked >= self._timeout / _LOOKS:
                    looked = time.monotonic()
                    self._look(looked)
                wants = waited_for.send(ready)
        except StopIteration as end:
            answer: _Answer = end.value
            return answer

    def _look(self, now: float) -> None:
        for found in self._ask(_WHO, pid=self.pid):
            if found.pid != self.pid:
                self._seen = (now, found)
            elif not self._reported:
                self._reported = True
                _LOG.warning("%s; %s", found, _STANDBYS)

    def error(self, error: psycopg.Error, waiting: Waiting) -> ExactsinkError | None:
        """Return the error that names the lock's holder if it is known; None for another error, or unknown deadlock."""
        if isinstance(error, psycopg.errors.DeadlockDetected):
            pids = re.findall(r"\d+", error.diag.message_detail or "")  # in whatever language
            found = [one for one in self._writers(waiting) if one.gid and str(one.pid) in pids]
            return _blocked(found[0], waiting) if found else None
        if not isinstance(error, psycopg.errors.LockNotAvailable):
            return None
        # That wait lasted for the whole timeout, so a session seen within it held this lock, not an earlier one.
        if self._seen is not None and time.monotonic() - self._seen[0] <= self._timeout:
            return _blocked(self._seen[1], waiting)
        # The holder of a row's lock may have written to the table before, and may have ended.
        writers = self._writers(waiting)
        some = "; ".join(map(str, writers[:_SHOWN])) + ("; ..." if len(writers) > _SHOWN else "")
        why = f"one of these may hold it: {some}" if writers else "exactsink did not find who held it"
        return Retryable(f"{waiting.doing}: a lock was not granted in time", why=f"{why}; {waiting.safe}", next=AGAIN)

    def advice(self, error: psycopg.Error) -> str:
        """Return the fix for a timeout that ended a call; empty for another error, or if unknown."""
        with suppress(ExactsinkError, psycopg.Error):
            return advice(error, self._connect)
        return ""

    def _writers(self, waiting: Waiting) -> list[Blocker]:
        """List who has written to the table and may still hold locks on it, oldest first."""
        return self._ask(_ON_TABLE, relation=waiting.relation, pid=self.pid)

    def _ask(self, query: str, **parameters: object) -> list[Blocker]:
        """Query in a new session. If that fails, the answer is empty."""
        with suppress(ExactsinkError, psycopg.Error), self._connect() as session:
            return [Blocker(*row[:4]) for row in session.execute(query.encode(), parameters).fetchall()]
        return []


def _blocked(blocker: Blocker, waiting: Waiting) -> ExactsinkError:
    """Return the error for a participant, or a driver, that did not get a lock."""
    mine, safe = waiting.mine, waiting.safe
    kind: type[ExactsinkError] = Retryable
    why, fix = "it is an earlier attempt of this job's own; the next start rolls it back", AGAIN
    other = Txn.parse(blocker.gid or "")
    if mine is None:
        why, fix = safe, f"end it ({blocker.ended_by}), or wait; then {AGAIN}"
    elif other is None:
        why, fix = f"it is not this job's; {safe}", f"let its owner end it ({blocker.ended_by}), or wait; then {AGAIN}"
    elif other.job != mine.job:
        why = f"it is job {other.job}'s; {safe}"
        fix = f"start job {other.job}, which commits or rolls back its prepared work, or wait; then {AGAIN}"
    elif other.generation < mine.generation:
        why = "an earlier driver of this job began it; the next start rolls it back"
    elif other.generation > mine.generation or (mine.token and other.token != mine.token):
        why = "another driver has claimed this job, or one with another journal uses its name"
        fix = "leave the job to that driver; `exactsink status JOB.toml` shows it"
    elif other.epoch == mine.epoch and other.sink != mine.sink:
        kind, why = Fatal, f"sinks {other.sink} and {mine.sink} write rows with the same unique key into one table"
        fix = "filter the rows of one sink (where), or take one of the sinks out"
    elif other.epoch == mine.epoch and other.partition != mine.partition and mine.partition >= 0:
        pair = f"partitions {other.partition} and {mine.partition}"
        kind, why = Fatal, f"{pair} of this epoch hold rows with the same unique key"
        fix = 'set distribution = "hash(key)" for this sink, with the columns of the key: rows of one key then come '
        fix += "together, and the server names them; or drop the doubles before it "
        fix += f"(columns: {', '.join(waiting.columns)})"
    return kind(f"{waiting.doing}: blocked by {blocker}", why=why, next=fix)
