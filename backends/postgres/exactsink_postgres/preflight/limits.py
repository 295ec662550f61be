"""What bounds or weakens a session on a server: connections, timeouts, durability. For preflight."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from exactsink.contract import Finding, JobContext
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import ask
from exactsink_postgres.tables import quoted

__all__ = ["duration", "session_findings", "setting_findings", "timeout_findings", "unset"]

_SESSIONS = """
    SELECT current_setting('max_connections')::int AS most,
        current_setting('superuser_reserved_connections')::int
            + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved,
        (SELECT sum(numbackends)::int FROM pg_stat_database) AS used,
        role.rolname AS role, CASE WHEN role.rolsuper THEN -1 ELSE role.rolconnlimit END AS role_most,
        (SELECT count(*)::int FROM pg_stat_activity
            WHERE usename = session_user AND backend_type = 'client backend') AS role_used,
        base.datname AS database, CASE WHEN role.rolsuper THEN -1 ELSE base.datconnlimit END AS database_most,
        (SELECT numbackends FROM pg_stat_database WHERE datid = base.oid) AS database_used
    FROM pg_roles AS role, pg_database AS base WHERE role.rolname = session_user AND base.datname = current_database()
"""
_TIMEOUTS = """
    SELECT name, setting::float8 / 1000 AS seconds, source, session_user AS login, current_database() AS database
    FROM pg_settings WHERE setting::bigint > 0 AND setting::bigint < %(budget)s AND name = ANY (%(names)s) ORDER BY name
"""
_CUT = {
    "idle_in_transaction_session_timeout": "a transaction that waits for its task's next rows",
    "statement_timeout": "the COPY of a task's rows",
    "transaction_timeout": "a task's transaction",
}
_SETTINGS = "SELECT name FROM pg_settings WHERE name = ANY (%(names)s) AND setting = 'off' ORDER BY name"
_WEAK = {
    "fsync": "a crash of the server's machine may lose or spoil what was committed",
    "full_page_writes": "a crash of the server's machine may spoil pages that were being written",
    "track_activities": "a stalled task that still writes is not seen, so no sweep can end it and free its locks",
}


def session_findings(connection: psycopg.Connection, participants: int | None) -> Iterator[Finding]:
    """Compare free connections with an epoch's participants: every running task holds one."""
    if participants is None:
        return
    [now] = ask(connection, _SESSIONS)
    role, database, reserved = quoted(now["role"]), quoted(now["database"]), now["reserved"]
    wanted = {limit: now[limit] + participants for limit in ("used", "role_used", "database_used")}
    for what, most, used, statement in (
        (
            "the server",
            now["most"] - reserved,
            now["used"],
            f"ALTER SYSTEM SET max_connections = {wanted['used'] + reserved}; then restart the server",
        ),
        (
            f"role {role}",
            now["role_most"],
            now["role_used"],
            f"ALTER ROLE {role} CONNECTION LIMIT {wanted['role_used']}",
        ),
        (
            f"database {database}",
            now["database_most"],
            now["database_used"],
            f"ALTER DATABASE {database} CONNECTION LIMIT {wanted['database_used']}",
        ),
    ):
        free = max(most - used, 0)
        if most >= 0 and free < participants:
            message = (
                f"{what} has {free} of {most} connections free, an epoch has up to {participants} participants: "
                "more tasks than that can't write at the same time"
            )
            yield Finding("warning", message, f"{statement}; or max_participants = {max(free, 1)} in the config")


def timeout_findings(options: PostgresOptions, ctx: JobContext, connection: psycopg.Connection) -> Iterator[Finding]:
    """Compare the timeouts, as this session has them, with what an epoch may take."""
    budget = ctx.epoch_budget_seconds
    for found in ask(connection, _TIMEOUTS, budget=budget * 1000, names=list(_CUT)):
        name = found["name"]
        message = (
            f"{name} is {duration(found['seconds'])}, an epoch may take {duration(budget)} (epoch_budget): "
            f"it may end {_CUT[name]}"
        )
        yield Finding("warning", message, unset(name, "0", found["source"], found["login"], found["database"]))
    if options.lock_timeout_seconds >= budget:
        message = (
            f"lock_timeout_seconds is {options.lock_timeout_seconds:g}, an epoch may take {budget:g} s (epoch_budget): "
            "a task that is blocked says so too late"
        )
        yield Finding("warning", message, f"lock_timeout_seconds = {min(10, budget / 4):g} in the config")


def setting_findings(connection: psycopg.Connection) -> Iterator[Finding]:
    """Find settings of the server that weaken what a commit means, or blind the sweep. No fsync: no promise.

    synchronous_commit is none of them. PREPARE TRANSACTION and COMMIT PREPARED are always synchronous, says the
    documentation ("Asynchronous Commit", in the chapter on reliability), and the staged strategy sets it itself.
    """
    for found in ask(connection, _SETTINGS, names=list(_WEAK)):
        name = found["name"]
        fix = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
        yield Finding("error" if name == "fsync" else "warning", f"{name} is off: {_WEAK[name]}", fix)


def unset(name: str, value: str, source: str, login: str, database: str) -> str:
    """Return what ends a setting, for a session whose setting comes from `source` (pg_settings)."""
    if source == "client":
        return f"take {name} out of `options` in conninfo (or PGOPTIONS)"
    there = f" IN DATABASE {quoted(database)}" if source == "database user" else ""
    return f"ALTER ROLE {quoted(login)}{there} SET {name} = {value};"


def duration(seconds: float) -> str:
    """Write a time span in the unit that people would."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
