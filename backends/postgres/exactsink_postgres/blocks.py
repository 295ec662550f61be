"""The effects of a participant on the server until it ends: locked tables, waiting sessions, VACUUM, slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from exactsink_postgres.locks import BLOCKS, HOLDERS
from exactsink_postgres.server import Session

__all__ = ["held_by"]

_PREPARED = """SELECT extract(epoch FROM clock_timestamp() - prepared)::float8, database, age(transaction),
        current_setting('autovacuum_freeze_max_age')::int, current_setting('max_prepared_transactions')::int,
        (SELECT count(*) FROM pg_prepared_xacts)
    FROM pg_prepared_xacts WHERE gid = %(ref)s AND database = current_database()"""
_MINE = f"""
    {HOLDERS}, mine AS (
        SELECT locks.* FROM locks JOIN holders ON holders.holder = locks.virtualtransaction
        WHERE holders.gid = %(ref)s AND locks.pid IS NULL
        UNION ALL SELECT * FROM locks WHERE pid = %(pid)s
    )
"""
_TABLES = f"""
    WITH {_MINE} SELECT DISTINCT relation::regclass::text, mode FROM mine JOIN pg_class ON pg_class.oid = relation
    WHERE relkind IN ('r', 'p') AND relnamespace <> 'pg_catalog'::regnamespace
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND mode NOT IN ('AccessShareLock', 'RowShareLock')
    ORDER BY 1, 2
"""
_WAITING = f"""
    WITH {_MINE} SELECT DISTINCT who.pid, usename, application_name,
        extract(epoch FROM clock_timestamp() - query_start)::float8
    FROM mine AS held JOIN pg_locks AS waits ON NOT waits.granted AND {BLOCKS}
    JOIN pg_stat_activity AS who ON who.pid = waits.pid ORDER BY who.pid
"""
_FULL = 0.8
"""The share of used slots from which on they are reported."""


def held_by(session: Session, ref: str, pid: int | None) -> Sequence[str]:
    """Return the effects of the transaction that is prepared as `ref`, or that session `pid` has open."""
    return list(_sentences(session, {"ref": ref, "pid": pid}))


def _sentences(session: Session, whose: dict[str, Any]) -> Iterator[str]:
    prepared = session.execute(_PREPARED, whose).fetchall()
    for age, database, behind, freeze, slots, taken in prepared:
        late = f": past autovacuum_freeze_max_age ({freeze:,}); at 2^31 the server takes no more writes"
        yield (
            f"VACUUM keeps, in all of database {database}, rows deleted or updated since it began: it is prepared "
            f"for {age:.0f} s, and {behind:,} transactions old{late if behind > freeze else ''}"
        )
        if taken >= slots * _FULL:
            yield f"it takes a slot for prepared transactions: {taken} of {slots} are taken (max_prepared_transactions)"
    if whose["pid"] is not None:
        yield f"session {whose['pid']} still writes for it: its rows are in no vote"
    for table, mode in session.execute(_TABLES.encode(), whose).fetchall():
        yield f"it holds {mode} on table {table}: ALTER, DROP, TRUNCATE and CREATE INDEX on it wait until it ends"
    for pid, user, name, seconds in session.execute(_WAITING.encode(), whose).fetchall():
        yield f"session {pid} of {user} ({name or 'without a name'}) waits for it since {seconds:.0f} s"
