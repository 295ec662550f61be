"""Jobs with Postgres sinks: their part of the job's file, what the sinks hold, and what is left in the database."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tests.e2e.jobs import PARTICIPANTS, ROWS_AN_EPOCH, THREE_SINKS, Row, leftovers, row_of, wrong_rows
from tests.servers.postgres import Postgres

__all__ = ["SLOTS", "Database", "Gate", "database_of", "gate_of"]

_POSTGRES = """
[sinks.{table}]
backend = "postgres"
conninfo = "{conninfo}"
table = "{table}"
columns = ["id", "kind", "amount", "tags"]
{more}
"""
_STAGING_TABLES = r"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'exactsink\_rows\_%'"
_FOREIGN = (
    "somebody's own {}",
    "other.db.g1-{}.e0.p0.a0",
    "e2e-b.db.g1-{}.e0.p0.a0",  # another job, whose name begins like this one's
    "e2e.db-b.g1-{}.e0.p0.a0",  # a sink that this job does not have
    "e2e.db.{}",  # nobody's gid, though it begins like one
)
_ELSEWHERE = "e2e.db.g1-{}.e0.p0.a0"
_STAGED = "e2e-b.later.g1-{}.e0.p0.a0"
_GIDS = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_REGISTRY = """(participant text PRIMARY KEY, rows_table text NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
SLOTS = PARTICIPANTS + len(_FOREIGN) + 1
"""How many transactions stand prepared while an epoch is voted: those of its tasks beside the foreign ones."""


class Foreign:
    """What looks like a job's own work in its database, and under its name in another one: none of it may be hurt."""

    def __init__(self, server: Postgres, database: str, *, sessions: bool) -> None:
        """Begin what nobody ends. `sessions`: also with open ones, which no server's stop survives."""
        self._server = server
        self._here, self._other = database, f"{database}_other"
        self._token = token = uuid.uuid4().hex[:8]
        self._table = f"exactsink_rows_{token}"
        self.gids = {gid.format(token) for gid in _FOREIGN}
        self.staged = {self._table, _STAGED.format(token)}
        self._sessions: dict[str, int] = {}
        self._stack = ExitStack()
        server.create_database(self._other)
        for place in (self._here, self._other):
            server.execute("CREATE TABLE theirs (n int)", place)
        for gid in self.gids:
            self._prepare(self._here, gid)
        self._prepare(self._other, _ELSEWHERE.format(token))
        self._stage(_STAGED.format(token))
        if sessions:
            self._write(self._here, f"e2e-b.db.g1-{token}.e1.p0.a0")
            self._write(self._other, f"e2e.db.g1-{token}.e1.p0.a0")

    def hurt(self) -> list[str]:
        """Return whose work is gone."""
        lost = self.gids - self._standing(self._here)
        lost |= {_ELSEWHERE.format(self._token)} - self._standing(self._other)
        rows = f"SELECT n FROM {self._table} JOIN exactsink_staged ON rows_table = '{self._table}'"
        lost |= set() if self._server.execute(rows, self._here) == [(1,)] else self.staged
        writing = self._server.execute("SELECT pid FROM pg_stat_activity WHERE xact_start IS NOT NULL")
        lost |= {name for name, pid in self._sessions.items() if (pid,) not in writing}
        return sorted(lost)

    def end(self) -> None:
        """End it, and whatever the job left prepared: the slots are everybody's."""
        self._stack.close()
        for place in (self._here, self._other):
            for gid in self._standing(place):
                with psycopg.connect(self._server.conninfo(place), autocommit=True) as session:
                    session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    def _standing(self, database: str) -> set[str]:
        return {gid for (gid,) in self._server.execute(_GIDS, database)}

    def _prepare(self, database: str, gid: str) -> None:
        with psycopg.connect(self._server.conninfo(database), autocommit=True) as session:
            session.execute("BEGIN; INSERT INTO theirs VALUES (1)")
            session.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))

    def _stage(self, participant: str) -> None:
        """Register staged rows as another job of this backend does."""
        for statement in (
            f"CREATE TABLE exactsink_staged {_REGISTRY}",
            f"CREATE TABLE {self._table} AS SELECT 1 AS n",
            f"COMMENT ON TABLE {self._table} IS '{participant.rpartition('.p')[0]}'",
            f"INSERT INTO exactsink_staged VALUES ('{participant}', '{self._table}', 1)",
        ):
            self._server.execute(statement, self._here)

    def _write(self, database: str, name: str) -> None:
        session = psycopg.connect(self._server.conninfo(database))  # not in autocommit: its transaction stays open
        self._stack.callback(session.close)
        session.execute(f"/* exactsink {name} */ INSERT INTO theirs VALUES (1)".encode())
        self._sessions[name] = session.info.backend_pid


@dataclass(frozen=True)
class Database:
    """One test's database for the sinks `db` (two_phase, no key: a row that comes twice is there twice) and `later`
    (staged, with a primary key made beforehand), beside THREE_SINKS; foreign work is in it too.
    """

    server: Postgres
    name: str
    foreign: Foreign

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
        """What stands prepared here, but for foreign transactions."""
        return sorted(gid for (gid,) in self.execute(_GIDS) if gid not in self.foreign.gids)

    @property
    def staged(self) -> list[str]:
        """Staging tables and registered participants, but for foreign ones."""
        found = [*self.execute(_STAGING_TABLES), *self.execute("SELECT participant FROM exactsink_staged")]
        return sorted(name for (name,) in found if name not in self.foreign.staged)

    @property
    def writing(self) -> list[str]:
        """The participants of this job whose tasks write at this moment."""
        query = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
        return [text.split()[2] for (text,) in self.execute(query) if text.startswith("/* exactsink e2e.")]

    def amiss(self, folder: Path) -> Mapping[str, object]:
        """Return what is not as it must be once the job has ended: nothing, when all is well.

        Every sink's rows against the source's one by one, what the job left prepared, staged or half written, and what
        became of foreign work.
        """
        found: Mapping[str, object] = {
            "wrong rows": wrong_rows(folder, also={table: self._held(table) for table in ("db", "later")}),
            "files left": leftovers(folder),
            "prepared": self.prepared,
            "staged": self.staged,
            "foreign hurt": self.foreign.hurt(),
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
    """Make a database with foreign work in it; `sessions`: also with open ones. It stays with the server."""
    name = f"e2e_{uuid.uuid4().hex[:12]}"
    server.create_database(name)
    database = Database(server, name, Foreign(server, name, sessions=sessions))
    database.execute("CREATE TABLE later (id bigint PRIMARY KEY, kind text, amount float8, tags jsonb)")
    try:
        yield database
    finally:
        database.foreign.end()


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
