"""A private PostgreSQL server for benchmarks, set up as in production, and the same for both sides."""

from __future__ import annotations

import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg import sql
from tests.servers.postgres import PostgresServer

from exactsink_postgres.backend import PostgresBackend
from exactsink_postgres.options import PostgresOptions

__all__ = ["PARTICIPANTS_AT_MOST", "Served", "serving"]

PARTICIPANTS_AT_MOST = 64
_DATABASE = "benchmark"
_ROLE = "benchmark"
_SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",  # segments are reused, so no variant pays for new ones
    "checkpoint_timeout": "1h",  # each run begins after a checkpoint, and has none
    "autovacuum": "off",  # it would run in some rounds and not in others
    "fsync": "on",
    "synchronous_commit": "on",
    "max_prepared_transactions": str(PARTICIPANTS_AT_MOST),
}
_ACCESS = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"  # the socket's folder is private


@dataclass(frozen=True, slots=True)
class Served:
    """A running server with a database, and a role that reaches it over TCP with a password."""

    server: PostgresServer
    port: int
    password: str

    @property
    def notes(self) -> Sequence[str]:
        """Describe the server."""
        (version,) = self.server.execute("SHOW server_version")[0]
        settings = ", ".join(f"{name} {value}" for name, value in _SETTINGS.items())
        return [
            f"PostgreSQL {version}, private, the rest as it comes: {settings}",
            "TRUNCATE and CHECKPOINT before each run, not timed; cpu_s counts the server's processes, too",
            f"the server's data lies below {tempfile.gettempdir()} (TMPDIR), wherever --work is",
        ]

    @property
    def conninfo(self) -> str:
        """The connection string to the database over the socket, as superuser."""
        return self.server.conninfo(_DATABASE)

    @property
    def tcp(self) -> str:
        """The connection string over TCP, as the role that owns the tables."""
        return f"host=127.0.0.1 port={self.port} dbname={_DATABASE} user={_ROLE} password={self.password}"

    @property
    def tcp_url(self) -> str:
        """The same connection as a URL."""
        return f"postgresql://{_ROLE}:{self.password}@127.0.0.1:{self.port}/{_DATABASE}"

    @property
    def jdbc(self) -> Mapping[str, str]:
        """The same connection over TCP as options of Spark's `jdbc` format."""
        url = f"jdbc:postgresql://127.0.0.1:{self.port}/{_DATABASE}?reWriteBatchedInserts=true"
        return {"url": url, "user": _ROLE, "password": self.password, "driver": "org.postgresql.Driver"}

    def backend(
        self, table: str, conninfo: str, strategy: Literal["two_phase", "staged"] = "two_phase"
    ) -> PostgresBackend:
        """Return exactsink's backend for a table."""
        given = {"conninfo": conninfo, "table": table, "strategy": strategy}
        return PostgresBackend(PostgresOptions.model_validate(given))

    def make(self, table: str, columns: str) -> None:
        """Make a table that the role owns."""
        self._run(sql.SQL("SET ROLE {}").format(sql.Identifier(_ROLE)), f"CREATE TABLE {table} ({columns})")

    def empty(self, table: str) -> None:
        """Empty a table, and write all dirty pages."""
        self._run(f"TRUNCATE {table}", "CHECKPOINT")

    def count(self, table: str) -> int:
        """Count a table's rows."""
        return int(self.server.execute(f"SELECT count(*) FROM {table}", _DATABASE)[0][0])

    def _run(self, *statements: str | sql.Composed) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for statement in statements:
                session.execute(statement.encode() if isinstance(statement, str) else statement)


@contextmanager
def serving() -> Iterator[Served]:
    """Make and start a server. It is removed at the end of the block."""
    password = secrets.token_hex(16)
    port = _free_port()
    server = PostgresServer({**_SETTINGS, "listen_addresses": "127.0.0.1", "port": str(port)})
    try:
        (server.folder / "data" / "pg_hba.conf").write_text(_ACCESS)
        server.start()
        server.execute(f"CREATE ROLE {_ROLE} LOGIN PASSWORD '{password}'")
        server.execute(f"CREATE DATABASE {_DATABASE} OWNER {_ROLE}")
        yield Served(server, port, password)
    finally:
        server.remove()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
