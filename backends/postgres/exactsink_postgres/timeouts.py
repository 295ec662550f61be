"""Timeouts of the server that end a task's or a driver's work: where a session has them from, and what ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from exactsink.toolkit.sql import quoted

__all__ = ["advice", "origin", "unset"]

_TIMEOUTS = {
    "57014": "statement_timeout",
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
}
"""What ends a statement or a session with such a state."""

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


def origin(now: Mapping[str, Any]) -> str:
    """Name what sets a session's setting, by its `source` (pg_settings), `login` and `database`."""
    names = {name: quoted(now[name]) for name in ("login", "database")}
    return _PLACES.get(now["source"], "the server's configuration").format(**names)


def unset(name: str, value: str, now: Mapping[str, Any]) -> str:
    """Return what ends a setting of a session's, wherever it comes from, for this role alone."""
    if now["source"] == "client":
        return f"take {name} out of `options` in conninfo (or PGOPTIONS)"
    there = f" IN DATABASE {quoted(now['database'])}" if now["source"] == "database user" else ""
    return f"ALTER ROLE {quoted(now['login'])}{there} SET {name} = {value};"


def advice(error: psycopg.Error, connect: Callable[[], psycopg.Connection]) -> str:
    """Return what helps against a timeout that ended a call, asked in a new session of the same role and database.

    It is empty for an error of another kind.
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
