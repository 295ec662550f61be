"""Others on a job's server, whose names look much like the job's own: none of them may be hurt by it."""

from __future__ import annotations

import uuid
from contextlib import ExitStack

import psycopg
from psycopg import sql

from tests.servers.postgres import Postgres

__all__ = ["PREPARED_BY_STRANGERS", "Strangers"]

_HERE = (
    "somebody's own {}",
    "other.db.g1-{}.e0.p0.a0",
    "e2e-b.db.g1-{}.e0.p0.a0",  # another job, whose name begins like this one's
    "e2e.db-b.g1-{}.e0.p0.a0",  # a sink that this job does not have
    "e2e.db.{}",  # nobody's gid, though it begins like one
)
_ELSEWHERE = "e2e.db.g1-{}.e0.p0.a0"
_STAGED = "e2e-b.later.g1-{}.e0.p0.a0"
PREPARED_BY_STRANGERS = len(_HERE) + 1
"""How many prepared transactions of theirs stand on the server."""
_GIDS = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_REGISTRY = """(participant text PRIMARY KEY, rows_table text NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp())"""


class Strangers:
    """Prepared transactions, staged rows and sessions in a job's database, and under its name in another one."""

    def __init__(self, server: Postgres, database: str) -> None:
        self._server = server
        self._database = database
        self._token = uuid.uuid4().hex[:8]
        self._sessions: dict[str, int] = {}
        self._stack = ExitStack()

    @property
    def gids(self) -> set[str]:
        """The prepared ones in the job's database."""
        return {gid.format(self._token) for gid in _HERE}

    @property
    def staged(self) -> set[str]:
        """Their staging table and their name in the registry, in the job's database."""
        return {self._rows_table, _STAGED.format(self._token)}

    def arrive(self, *, sessions: bool) -> None:
        """Let them begin what they will never end. `sessions`: also with open ones, which no server's stop survives."""
        self._server.create_database(self._other)
        for database in (self._database, self._other):
            self._server.execute("CREATE TABLE theirs (n int)", database)
        for gid in self.gids:
            self._prepare(self._database, gid)
        self._prepare(self._other, self._elsewhere)
        self._stage()
        if sessions:
            self._write(self._database, f"e2e-b.db.g1-{self._token}.e1.p0.a0")
            self._write(self._other, f"e2e.db.g1-{self._token}.e1.p0.a0")

    def hurt(self) -> list[str]:
        """Return whose work is gone."""
        lost = self.gids - self._standing(self._database)
        lost |= {self._elsewhere} - self._standing(self._other)
        rows = f"SELECT n FROM {self._rows_table} JOIN exactsink_staged ON rows_table = '{self._rows_table}'"
        lost |= set() if self._server.execute(rows, self._database) == [(1,)] else self.staged
        writing = self._server.execute("SELECT pid FROM pg_stat_activity WHERE xact_start IS NOT NULL")
        lost |= {name for name, pid in self._sessions.items() if (pid,) not in writing}
        return sorted(lost)

    def leave(self) -> None:
        """End them, and whatever the job left prepared: the slots are everybody's."""
        self._stack.close()
        for database in (self._database, self._other):
            for gid in self._standing(database):
                with psycopg.connect(self._server.conninfo(database), autocommit=True) as session:
                    session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    @property
    def _other(self) -> str:
        return f"{self._database}_other"

    @property
    def _elsewhere(self) -> str:
        return _ELSEWHERE.format(self._token)

    @property
    def _rows_table(self) -> str:
        return f"exactsink_rows_{self._token}"

    def _standing(self, database: str) -> set[str]:
        return {gid for (gid,) in self._server.execute(_GIDS, database)}

    def _prepare(self, database: str, gid: str) -> None:
        with psycopg.connect(self._server.conninfo(database), autocommit=True) as session:
            session.execute("BEGIN; INSERT INTO theirs VALUES (1)")
            session.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))

    def _stage(self) -> None:
        """Register staged rows as another job of this backend does."""
        participant = _STAGED.format(self._token)
        for statement in (
            f"CREATE TABLE exactsink_staged {_REGISTRY}",
            f"CREATE TABLE {self._rows_table} AS SELECT 1 AS n",
            f"COMMENT ON TABLE {self._rows_table} IS '{participant.rpartition('.p')[0]}'",
            f"INSERT INTO exactsink_staged VALUES ('{participant}', '{self._rows_table}', 1)",
        ):
            self._server.execute(statement, self._database)

    def _write(self, database: str, name: str) -> None:
        session = psycopg.connect(self._server.conninfo(database))  # not in autocommit: its transaction stays open
        self._stack.callback(session.close)
        session.execute(f"/* exactsink {name} */ INSERT INTO theirs VALUES (1)".encode())
        self._sessions[name] = session.info.backend_pid
