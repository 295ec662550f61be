"""The databases of the plays: each with room for a play's table."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy.pool import NullPool

from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres

Run = Callable[[str], Sequence[tuple[Any, ...]]]


@dataclass(frozen=True)
class Place:
    """One database: its name, a sink's URL, the prefix of its table, and how a statement is run from outside."""

    database: str
    url: str
    prefix: str
    run: Run


@contextmanager
def sqlite_place(folder: Path) -> Iterator[Place]:
    file = folder / "plays.db"

    def run(statement: str) -> Sequence[tuple[Any, ...]]:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    yield Place("sqlite", f"sqlite:///{file}", "", run)


@contextmanager
def duckdb_place(folder: Path) -> Iterator[Place]:
    """The file stays open: to open it takes 50 ms, and a play's sink does so 24 times."""
    url = f"duckdb:///{folder / 'plays.duckdb'}"
    with closing(sqlalchemy.create_engine(url, poolclass=NullPool).raw_connection()) as connection:

        def run(statement: str) -> Sequence[tuple[Any, ...]]:
            with closing(connection.cursor()) as cursor:
                cursor.execute(statement)
                return [tuple(row) for row in cursor.fetchall()]

        run("SET TimeZone = 'UTC'")
        yield Place("duckdb", url, "", run)


@contextmanager
def mariadb_place(server: MariaDB) -> Iterator[Place]:
    name = server.new_database("plays")
    with closing(server.connect(name)) as connection:

        def run(statement: str) -> Sequence[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute("SET time_zone = '+00:00'")
                cursor.execute(statement)
                return list(cursor.fetchall())

        yield Place("mariadb", server.url(name), "", run)


@contextmanager
def postgres_place(server: Postgres) -> Iterator[Place]:
    name = f"plays_{uuid.uuid4().hex[:12]}"
    url = server.create_database(name)
    with psycopg.connect(server.conninfo(name), autocommit=True) as connection:

        def run(statement: str) -> Sequence[tuple[Any, ...]]:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        run("CREATE SCHEMA plays")
        run("SET search_path = plays")
        run("SET TimeZone = 'UTC'")
        with suppress(psycopg.Error):  # a server without ICU
            run("CREATE COLLATION plays.careless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        yield Place("postgres", url, "plays.", run)
