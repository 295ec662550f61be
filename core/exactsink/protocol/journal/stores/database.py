"""The database in a journal's URL: its connection, and the begin of each transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool, QueuePool

from exactsink.contract import ConfigError, PreflightError
from exactsink.toolkit.sql import LOCK_SECONDS, limits_of_libpq, postgres_limits

__all__ = ["Database"]

_PIP = MappingProxyType({"MySQLdb": "mysqlclient", "psycopg": "'psycopg[binary]>=3.2'", "psycopg2": "psycopg2-binary"})
"""Distributions with a name other than their module's."""

# A stalled driver neither blocks a seq permanently, nor waits for one so: it gets an error, and reads the seq.
_POSTGRES_TRANSACTION = f"""
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_setting('fsync') = 'off',
    {postgres_limits()}
"""


class Database:
    """One database and at most one connection to it. For one thread at a time. Connects with its first transaction.

    `place` names it without user, password and options; `file` is SQLite's. The constructor raises ConfigError if the
    text is not a URL of SQLAlchemy's or its driver is missing, and PreflightError for SQLite in memory.
    """

    def __init__(self, url: str) -> None:
        given = _parsed(url)
        self._engine = _engine(given)
        self.file = Path(str(given.database)) if given.get_backend_name() == "sqlite" else None
        self.place = given.create(
            given.drivername, host=given.host, port=given.port, database=given.database
        ).render_as_string()

    @contextmanager
    def transaction(self, write: bool = False) -> Iterator[Connection]:
        """Open a transaction, which commits at the end. After any error the connection is dropped.

        Nothing is retried. Raises PreflightError for a database that could lose a commit, or show an old state.
        """
        try:
            with self._engine.connect() as connection:
                if self.file is not None:
                    _begin_sqlite(connection, self.file, write)
                elif connection.dialect.name == "postgresql":
                    _begin_postgres(connection, self.place)
                yield connection
                connection.commit()
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        """Close the connection. Idempotent; a later transaction opens a new one."""
        self._engine.dispose()


def _parsed(url: str) -> URL:
    """Parse a URL, and make a SQLite file's path absolute. No error repeats the URL, which may contain the password."""
    given: URL | None = None
    with suppress(ArgumentError, ValueError):  # raised below, so that the error does not contain this one
        given = make_url(url)
    if given is None or "@" in (given.host or ""):
        raise ConfigError(
            "SQLAlchemy can't read the journal's URL",
            why="it is DRIVER://USER:PASSWORD@HOST:PORT/DATABASE, with odd characters written as %40 (@), %2F (/)",
            next="fix the URL: postgresql+psycopg://user:password@host/database, or sqlite:////path/to/file.db",
        )
    return _one_file(given) if given.get_backend_name() == "sqlite" else given


def _one_file(given: URL) -> URL:
    write = "write sqlite:////path/to/file.db"
    in_memory = not given.database or ":memory:" in given.database or "mode=memory" in given.database
    if in_memory or "memory" in given.query.values():
        raise PreflightError("a journal can't be in memory", why="it would be lost with its process", next=write)
    odd = given.host or given.username or given.password or given.query or str(given.database).startswith("file:")
    if odd or given.drivername not in ("sqlite", "sqlite+pysqlite"):
        why = "a file that is opened in another mode, or by another driver, may lose entries"
        raise ConfigError("a journal's SQLite URL holds a path only", why=why, next=write)
    return given.set(database=str(Path(str(given.database)).absolute()))


def _engine(given: URL) -> Engine:
    """Make the engine, which connects later.

    It keeps one connection, but none of a SQLite file, which may be replaced.
    """
    options: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    if given.get_backend_name() == "sqlite":
        # isolation_level None: the driver begins no transaction by itself.
        options = {"poolclass": NullPool, "connect_args": {"isolation_level": None, "timeout": LOCK_SECONDS}}
    elif given.get_backend_name() == "postgresql":
        # Set here, whatever the role's default or the URL's autocommit says.
        options |= {"isolation_level": "READ COMMITTED", "connect_args": _libpq(given)}
    wrong = "its driver is made for asyncio"
    try:
        if not given.get_dialect().is_async:
            return create_engine(given, hide_parameters=True, **options)
    except ImportError as error:
        module = (error.name or given.get_driver_name()).split(".")[0]
        needs = f"{given.drivername} needs the Python module {module}"
        raise ConfigError(needs, why=str(error), next=f"pip install {_PIP.get(module, module)}") from error
    except (ArgumentError, TypeError, ValueError) as error:
        wrong = f"SQLAlchemy refuses the URL ({type(error).__name__})"
    raise ConfigError(
        f"{given.drivername} can't hold a journal",
        why=wrong,
        next="name another driver, or fix the URL: postgresql+psycopg://user:password@host/database",
    )


def _libpq(given: URL) -> Mapping[str, Any]:
    if given.get_driver_name() not in ("psycopg", "psycopg2"):
        return {}
    arguments: dict[str, Any] = {**limits_of_libpq(given.get_driver_name(), given.query)}
    if "fallback_application_name" not in given.query:
        arguments["fallback_application_name"] = "exactsink journal"
    if given.get_driver_name() == "psycopg":
        arguments["prepare_threshold"] = None  # a pooler may send each transaction to another connection
    return arguments


def _begin_sqlite(connection: Connection, file: Path, write: bool) -> None:
    """Begin so that a commit survives a power cut. A writer takes its lock now, so that it can't lose a race later.

    The file's journal mode stays unchanged, because others may use the file. In the default mode, only EXTRA syncs the
    folder after the commit; otherwise a power cut could take the commit back.
    """
    folder = file.parent
    if not os.access(file if file.exists() else folder, os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        raise PreflightError(
            f"the journal {file} is read-only",
            why="SQLite must write it, and make files beside it",
            next=f"chmod u+rw {file} and u+rwx {folder}, or run the driver as its owner",
        )
    connection.exec_driver_sql("PRAGMA synchronous = EXTRA")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _begin_postgres(connection: Connection, place: str) -> None:
    """Begin so that a commit is durable whatever the role's defaults are. Refuse a server where it is not.

    It checks in each transaction, because behind a pooler or after a failover the next one may meet another server.
    """
    replica, read_only, unsafe = connection.exec_driver_sql(_POSTGRES_TRANSACTION).one()[:3]
    what = why = fix = ""
    if replica:
        what, why = "is a replica (in recovery)", "it shows an old state and takes no entries"
        fix = "name the primary in the journal's URL (of several hosts: target_session_attrs=read-write)"
    elif read_only:
        what, why = "is read-only for this role", "a journal is written"
        fix = "ALTER ROLE ... SET default_transaction_read_only = off; (or ALTER DATABASE ..., or name another role)"
    elif unsafe:
        what, why = "runs with fsync = off", "an entry, and so a decision, may be forgotten after a power cut"
        fix = "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"
    if what:
        raise PreflightError(f"the journal's server at {place} {what}", why=why, next=fix)
