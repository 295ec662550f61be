"""Turn the server's errors into exactsink's: the meaning and fix of each SQLSTATE, and where a timeout is set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from exactsink.contract import ExactsinkError, Fatal, Retryable
from exactsink.toolkit.sql import quoted

__all__ = ["AGAIN", "FIX_VALUES", "UNDECIDED", "advice", "origin", "ours", "shown", "unset"]

AGAIN = "start the job again"
FIX_VALUES = "cast or filter such values before this sink"
UNDECIDED = "the epoch is not decided yet; the next start writes all of its rows"
"""The fate of the rows if a task fails."""

_TRY_AGAIN = ("08", "40", "53", "57", "58", "25006", "25P03", "25P04", "55P03", "55006", "55000")
"""The states, or their classes, after which another try may help."""

_FIXES = {
    "22": FIX_VALUES,
    "23": "fix the rows, or the constraint, then start the job again",
    "25006": "connect to the primary (target_session_attrs=read-write in conninfo), then start the job again",
    "42501": "grant what is missing (`exactsink check JOB.toml` shows the statement), then start the job again",
    "42P01": "bring the table back, or set create = true, then start the job again",
    "53100": "free space on the server's disk that the message names, then start the job again",
    "53200": "give the server more memory, or lower max_participants",
    "53300": "raise max_connections, or lower max_participants: every running task holds a connection",
}
_LIMITS = {
    "max_prepared_transactions": "at least twice max_participants of all jobs",
    "max_locks_per_transaction": "twice its present value; tables with many partitions and indexes take most",
}
"""A new value for the limit that the server names, in a hint in any language, when it is out of memory for it."""

_POOLER = {
    "statement pooling mode": "give this database pool_mode = session or transaction in the pooler's configuration; "
    "or connect past it",
    "unsupported startup parameter": "remove the named setting from conninfo and PGOPTIONS, and set it by ALTER "
    "ROLE ... SET; or connect past the pooler",
    "query_wait_timeout": "raise the pooler's default_pool_size above the tasks that run at once, and two for the "
    "driver; or lower max_participants",
    "no more connections allowed": "raise the pooler's max_client_conn, or lower max_participants",
}
"""The messages of poolers, which have no state of their own."""
_REFUSED_BY_POOLER = ("statement pooling mode", "unsupported startup parameter")

_PASSWORD = "give the right user and password to the driver and every executor: in conninfo, a passfile or PGPASSWORD"
_TLS = "fix sslmode, sslrootcert or the server's certificate, for the driver and every executor"
_SERVICE = "give the driver and every executor a service file with it (PGSERVICEFILE, ~/.pg_service.conf)"
_ROLE = re.compile(r'(?<=role )".*"(?= (is not|does not))')
_NO_ENTRY = {
    "too many connections": "",
    "remaining connection slots": "",
    "password": _PASSWORD,
    "authentication": _PASSWORD,
    "channel binding": _PASSWORD,
    "pg_hba.conf": "add a line to the server's pg_hba.conf, or correct user, database and sslmode",
    **dict.fromkeys(("certificate", "private key", "support SSL"), _TLS),
    **dict.fromkeys(('service "', 'service file "'), _SERVICE),
    'database "': "make the database, or fix dbname in conninfo",
    "not permitted to log in": "ALTER ROLE {role} LOGIN; or fix user in conninfo",
    'role "': "CREATE ROLE {role} LOGIN; or fix user in conninfo",
    **dict.fromkeys(('value: "', "port number", "connection option"), "fix conninfo"),
}
"""Messages of connection errors, which have no state, with the fix if no other try can help."""

_TIMEOUTS = {
    "57014": "statement_timeout",
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
}
"""The reason why a statement or session ended with such a state."""

_SOURCE = """
    SELECT source, session_user AS login, current_database() AS database FROM pg_settings
    WHERE name = %s AND setting <> '0'
"""
_PLACES = {
    "client": "conninfo (`options`, or PGOPTIONS)",
    "user": "ALTER ROLE {login}",
    "database": "ALTER DATABASE {database}",
    "database user": "ALTER ROLE {login} IN DATABASE {database}",
    "global": "ALTER ROLE ALL",
}


def shown(error: psycopg.Error) -> str:
    """Return the server's message with its state."""
    return f"{error.diag.message_primary or error} (SQLSTATE {error.sqlstate})"


def ours(error: psycopg.Error, doing: str, safe: str = "", advice: str = "") -> ExactsinkError:
    """Return the server's error as one of exactsink's. `doing` is the failed call, `safe` the fate of the rows.

    `advice` is the fix, if the caller knows a better one than the state suggests.
    """
    diag, state = error.diag, error.sqlstate or ""
    named = {
        "table": diag.schema_name and diag.table_name and f"{diag.schema_name}.{diag.table_name}",
        "column": diag.column_name,
        "constraint": diag.constraint_name,
    }
    where = ", ".join(f"{kind} {name}" for kind, name in named.items() if name)
    said = diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    parts = [f"SQLSTATE {state}" if state else "", diag.message_detail, diag.context, diag.message_hint, safe]
    why = "; ".join(part.rstrip(".").replace("\n", "; ") for part in parts if part)
    what = f"{doing}: {where}: {said}" if where else f"{doing}: {said}"
    may_pass, fix = _outlook(error, state)
    if may_pass:
        return Retryable(what, why=why, next=advice or fix or f"check that the server is up, then {AGAIN}")
    return Fatal(what, why=why, next=advice or fix or f"fix the error that the server names, then {AGAIN}")


def _outlook(error: psycopg.Error, state: str) -> tuple[bool, str]:
    """Return whether another try may help, and the fix, empty if unknown."""
    if state in ("", "08P01"):
        for words, fix in _POOLER.items():
            if words in str(error):
                return words not in _REFUSED_BY_POOLER, fix
    for limit, least in _LIMITS.items():
        if state in ("", "53200") and limit in str(error):
            return True, f"ALTER SYSTEM SET {limit} = N, {least}, then restart the server; or lower max_participants"
    if not state:
        if not isinstance(error, psycopg.OperationalError):
            return False, ""
        fix = next((fix for words, fix in _NO_ENTRY.items() if words in str(error)), "")
        role = _ROLE.search(str(error))
        return not fix, fix.replace("{role}", role[0]) if role else fix
    return state.startswith(_TRY_AGAIN), _FIXES.get(state) or _FIXES.get(state[:2]) or ""


def origin(now: Mapping[str, Any]) -> str:
    """Name where a session's setting is set, by its `source` (pg_settings), `login` and `database`."""
    names = {name: quoted(now[name]) for name in ("login", "database")}
    return _PLACES.get(now["source"], "the server's configuration").format(**names)


def unset(name: str, value: str, now: Mapping[str, Any]) -> str:
    """Return the statement that removes a session's setting, wherever it is set, for this role alone."""
    if now["source"] == "client":
        return f"take {name} out of `options` in conninfo (or PGOPTIONS)"
    there = f" IN DATABASE {quoted(now['database'])}" if now["source"] == "database user" else ""
    return f"ALTER ROLE {quoted(now['login'])}{there} SET {name} = {value};"


def advice(error: psycopg.Error, connect: Callable[[], psycopg.Connection]) -> str:
    """Return the fix for a timeout that ended a call, read in a new session of the same role and database.

    It is empty for any other error.
    """
    name = _TIMEOUTS.get(error.sqlstate or "")
    if name is None:
        return ""
    with connect() as session:
        found = session.execute(_SOURCE, [name]).fetchall()
    for source, login, database in found:
        now = {"source": source, "login": login, "database": database}
        return f"{name} comes from {origin(now)}: {unset(name, '0', now)} then start the job again"
    return "somebody cancelled it (pg_cancel_backend): start the job again"
