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

from tests.e2e.jobs import PARTICIPANTS, ROWS_AN_EPOCH, THREE_SINKS, Row, leftovers, row_of, wrong_rows
from tests.servers.postgres import Postgres

_POSTGRES = """
[sinks.{table}]
backend = "postgres"
conninfo = "{conninfo}"
table = "{table}"
columns = ["id", "kind", "amount", "tags"]
{more}
"""
_STAGING_TABLES = r"""
    SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'exactsink\_rows\_%'
        AND obj_description(oid, 'pg_class') NOT LIKE '%.free %'
"""
_GIDS = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
SLOTS = PARTICIPANTS
"""How many transactions stand prepared while an epoch is voted: those of its tasks."""


@dataclass(frozen=True)
class Database:
    """One test's database for the sinks `db` (two_phase, no key: a row that comes twice is there twice) and `later`
    (staged, with a primary key made beforehand), beside THREE_SINKS.
    """

    server: Postgres
    name: str

    def sinks(self, way: Postgres | None = None) -> str:
        """Return all five sinks for the job's file; `way` is how the job reaches the server."""
        conninfo = (way or self.server).conninfo(self.name)
        db = _POSTGRES.format(table="db", conninfo=conninfo, more="create = true")
        return db + _POSTGRES.format(table="later", conninfo=conninfo, more='strategy = "staged"') + THREE_SINKS

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.name)

    def epochs(self, table: str) -> float:
        """Return how many epochs' rows any reader sees in a table."""
        [(count,)] = self.execute(f"SELECT count(*) FROM {table}")
        return float(count / ROWS_AN_EPOCH)

    @property
    def prepared(self) -> list[str]:
        """What stands prepared here."""
        return sorted(gid for (gid,) in self.execute(_GIDS))

    @property
    def staged(self) -> list[str]:
        """Staging tables in use, and registered participants."""
        registered = self.execute("SELECT participant FROM exactsink_staging.exactsink_staged")
        return sorted(name for (name,) in [*self.execute(_STAGING_TABLES), *registered])

    @property
    def writing(self) -> list[str]:
        """The participants of this job whose tasks write at this moment."""
        query = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
        return [text.split()[2] for (text,) in self.execute(query) if text.startswith("/* exactsink e2e.")]

    def amiss(self, folder: Path) -> Mapping[str, object]:
        """Return what is not as it must be once the job has ended: nothing, when all is well.

        Every sink's rows against the source's one by one, and what the job left prepared, staged or half written.
        """
        found: Mapping[str, object] = {
            "wrong rows": wrong_rows(folder, also={table: self._held(table) for table in ("db", "later")}),
            "files left": leftovers(folder),
            "prepared": self.prepared,
            "staged": self.staged,
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
def database_of(server: Postgres) -> Iterator[Database]:
    """Make a database, which stays with the server; what the job leaves prepared there is ended: slots are shared."""
    name = f"e2e_{uuid.uuid4().hex[:12]}"
    server.create_database(name)
    database = Database(server, name)
    database.execute("CREATE TABLE later (id bigint PRIMARY KEY, kind text, amount float8, tags jsonb)")
    try:
        yield database
    finally:
        for gid in database.prepared:
            database.execute(f"ROLLBACK PREPARED '{gid}'")


_KEY = 6
_GATE = (
    "CREATE TABLE db (id bigint, kind text, amount float8, tags jsonb)",
    f"""CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_lock_shared({_KEY}); PERFORM pg_advisory_unlock_shared({_KEY}); RETURN NULL; END $$""",
    """CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON db DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION gate()""",
)
_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"


class Gate:
    """Holds tasks in their `pre_commit`: in PREPARE TRANSACTION of the sink `db`, when the sinks before it have voted.

    Closed from `shut` on, until it is opened; who comes meanwhile waits, and goes on even if its process is dead.
    """

    def __init__(self, database: Database, session: psycopg.Connection) -> None:
        self._database = database
        self._session = session

    def shut(self) -> None:
        self._session.execute(f"SELECT pg_advisory_lock({_KEY})")

    @property
    def waiting(self) -> int:
        """Return how many tasks stand before it."""
        return len(self._database.execute(_WAITING))

    def open(self) -> None:
        """Let them through, and all who come later."""
        self._session.execute(f"SELECT pg_advisory_unlock({_KEY})")


@contextmanager
def gate_of(database: Database) -> Iterator[Gate]:
    """Make the table of the sink `db`, with a gate that stands open."""
    for statement in _GATE:
        database.execute(statement)
    with psycopg.connect(database.server.conninfo(database.name), autocommit=True) as session:
        yield Gate(database, session)
