"""Jobs with Postgres sinks: their part of the job's file, what the sinks hold, and what is left in the database."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tests.e2e.jobs import ROWS_A_BATCH, SINKS, SOURCE
from tests.e2e.rows import Row, leftovers, row_of, wrong_rows
from tests.e2e.strangers import PREPARED_BY_STRANGERS, Strangers
from tests.servers.postgres import Postgres

__all__ = ["PARTICIPANTS", "ROWS_AN_EPOCH", "SLOTS", "TWO_FILES", "Database", "database_of"]

PARTICIPANTS = 2
TWO_FILES = SOURCE.replace("maxFilesPerTrigger = 1", f"maxFilesPerTrigger = {PARTICIPANTS}")
"""A source whose epochs have a task for each of two files, and so two participants a sink."""
ROWS_AN_EPOCH = PARTICIPANTS * ROWS_A_BATCH
SLOTS = PARTICIPANTS + PREPARED_BY_STRANGERS
"""How many transactions stand prepared while an epoch is voted: those of its tasks beside the strangers'."""
_POSTGRES = """
[sinks.{table}]
backend = "postgres"
conninfo = "{conninfo}"
table = "{table}"
columns = ["id", "kind", "amount", "tags"]
{more}
"""
_STAGING_TABLES = r"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'exactsink\_rows\_%'"


@dataclass(frozen=True)
class Database:
    """One test's database for the sinks `db` (two_phase, no key: a row that comes twice is there twice) and `later`
    (staged, with a primary key made beforehand), beside files and SQLite; strangers are in it too.
    """

    server: Postgres
    name: str
    strangers: Strangers

    def sinks(self, way: Postgres | None = None, *, later: bool = True) -> str:
        """Return the sinks for the job's file; `way` is how the job reaches the server."""
        conninfo = (way or self.server).conninfo(self.name)
        db = _POSTGRES.format(table="db", conninfo=conninfo, more="create = true")
        return (
            db
            + (_POSTGRES.format(table="later", conninfo=conninfo, more='strategy = "staged"') if later else "")
            + SINKS
        )

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.name)

    def epochs(self, table: str) -> float:
        """Return how many epochs' rows any reader sees in a table."""
        [(count,)] = self.execute(f"SELECT count(*) FROM {table}")
        return float(count / ROWS_AN_EPOCH)

    @property
    def prepared(self) -> list[str]:
        """What stands prepared here, but for the strangers' own."""
        found = self.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")
        return [gid for (gid,) in found if gid not in self.strangers.gids]

    @property
    def staged(self) -> list[str]:
        """Staging tables and registered participants, but for the strangers' own."""
        found = [*self.execute(_STAGING_TABLES), *self.execute("SELECT participant FROM exactsink_staged")]
        return sorted(name for (name,) in found if name not in self.strangers.staged)

    @property
    def writing(self) -> list[str]:
        """The participants of this job whose tasks write at this moment."""
        query = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
        return [text.split()[2] for (text,) in self.execute(query) if text.startswith("/* exactsink e2e.")]

    def amiss(self, folder: Path, *, later: bool = True, lines: bool = False) -> Mapping[str, object]:
        """Return what is not as it must be once the job has ended: nothing, when all is well.

        Every sink's rows against the source's one by one, what the job left prepared, staged or half written, and what
        became of the strangers'. `later`, `lines`: the job has that sink, too.
        """
        held = {table: self._held(table) for table in ("db", *(["later"] if later else []))}
        found: Mapping[str, object] = {
            "wrong rows": wrong_rows(folder, sinks=("lake", "table", *(["lines"] if lines else [])), also=held),
            "files left": leftovers(folder),
            "prepared": self.prepared,
            "staged": self.staged,
            "strangers hurt": self.strangers.hurt(),
        }
        return {what: found for what, found in found.items() if found}

    def trace(self) -> Mapping[str, object]:
        """Return all that a write would change: where each row version stands and who made it, markers, tables."""
        rows = "SELECT ctid::text, xmin::text, id FROM {} ORDER BY ctid"
        tables = "SELECT relname, oid, relfilenode, relnatts FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        return {
            **{table: self.execute(rows.format(table)) for table in ("db", "later")},
            "tables": sorted(self.execute(tables)),
            "markers": self.execute("SELECT xmin::text, * FROM exactsink_epochs"),
            "prepared": self.prepared,
            "staged": self.staged,
        }

    def _held(self, table: str) -> Counter[Row]:
        with psycopg.connect(self.server.conninfo(self.name), row_factory=dict_row) as session:
            return Counter(map(row_of, session.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))))


@contextmanager
def database_of(server: Postgres, *, sessions: bool = True) -> Iterator[Database]:
    """Make a database with strangers in it; `sessions` says whether they have open ones. It stays with the server."""
    name = f"e2e_{uuid.uuid4().hex[:12]}"
    server.create_database(name)
    database = Database(server, name, Strangers(server, name))
    database.execute("CREATE TABLE later (id bigint PRIMARY KEY, kind text, amount float8, tags jsonb)")
    database.strangers.arrive(sessions=sessions)
    try:
        yield database
    finally:
        database.strangers.leave()
