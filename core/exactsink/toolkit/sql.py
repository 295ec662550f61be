"""SQL that every database server of the backends accepts, and limits of sessions of PostgreSQL."""

from __future__ import annotations

import string
from collections.abc import Container, Mapping
from types import MappingProxyType

__all__ = ["LOCK_SECONDS", "ascii_lower", "counted_by", "limits_of_libpq", "postgres_limits", "quoted"]

LOCK_SECONDS = 30
"""How long a short transaction waits for another one's lock."""

_IDLE_SECONDS = 10
_LIBPQ = MappingProxyType(
    {
        "connect_timeout": 10,
        # A peer that is gone silently is an error within a minute, not after the kernel's quarter of an hour.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
)
_ASCII = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def ascii_lower(name: str) -> str:
    """Fold ASCII letters only, as SQLite and a PostgreSQL server in UTF-8 do: `Übung` and `übung` are two names."""
    return name.translate(_ASCII)


def quoted(*names: str) -> str:
    """Quote an identifier, or several as one qualified name."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def counted_by(column: str, table: str, first: int) -> str:
    """Return the query that counts a table's rows by the value of a column, from `first` on, and the rows with NULL.

    Column and table are quoted already.
    """
    return f"SELECT {column}, COUNT(*) FROM {table} WHERE {column} >= {first} OR {column} IS NULL GROUP BY {column}"


def limits_of_libpq(driver: str, given: Container[str]) -> Mapping[str, int]:
    """Return parameters for a driver of SQLAlchemy that end a connection to a silent server, without those `given`."""
    return {name: n for name, n in _LIBPQ.items() if name not in given} if driver in ("psycopg", "psycopg2") else {}


def postgres_limits() -> str:
    """Return columns of a SELECT that make a short transaction durable, and limit its locks.

    It waits for no lock permanently. If its process is suspended, the server ends the session, so that its locks go.
    remote_apply is stronger than on; everything else is weaker.
    """
    return f"""set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
    set_config('lock_timeout', '{LOCK_SECONDS}s', true),
    set_config('idle_in_transaction_session_timeout', '{_IDLE_SECONDS}s', true)"""
