"""PgBouncer before a PostgreSQL server of the tests: on a unix socket only, and gone with its starter."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.packages import unpacked
from tests.servers.postgres import Postgres, server_user
from tests.servers.process import ServerProcess, owned

PORT = "6432"
SETTINGS = {"max_client_conn": "500", "default_pool_size": "30", "server_idle_timeout": "1", "admin_users": "postgres"}


class PgBouncer(ServerProcess, Postgres):
    """A pooler with its own folder: `start` and `kill` it at will, `remove` it at the end."""

    def __init__(self, server: Postgres, pool_mode: str, **settings: str) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-pool-")), PORT)
        self.pool_mode = pool_mode
        # The server's user must not read the folder where packages are unpacked.
        self._program = shutil.copy(unpacked("pgbouncer") / "usr/sbin/pgbouncer", self.folder)
        given = {"unix_socket_dir": str(self.folder), "listen_port": PORT, "listen_addr": "", "pool_mode": pool_mode}
        given |= {"auth_type": "trust", "auth_file": str(self.folder / "users"), **SETTINGS, **settings}
        lines = ["[databases]", f"* = host={server.folder} port={server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in given.items()]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        (self.folder / "users").write_text('"postgres" ""\n')
        for path in (self.folder, *self.folder.iterdir()):
            if "user" in server_user():
                shutil.chown(path, "postgres", "postgres")

    def show(self, what: str) -> list[dict[str, Any]]:
        """Query its console."""
        with psycopg.Connection.connect(
            self.conninfo("pgbouncer"), autocommit=True, row_factory=psycopg.rows.dict_row
        ) as console:
            cursor = psycopg.ClientCursor(console, row_factory=psycopg.rows.dict_row)  # it takes simple queries only
            return cursor.execute(f"SHOW {what}".encode()).fetchall()

    def _command(self) -> Sequence[str | Path]:
        return [self._program, self.folder / "pgbouncer.ini"]

    def _user(self) -> Mapping[str, Any]:
        return server_user()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo("pgbouncer")).close()
        except psycopg.OperationalError:
            return False
        return True


def own_pgbouncer(server: Postgres, pool_mode: str, **settings: str) -> AbstractContextManager[PgBouncer]:
    """Start a pooler for one owner, who may kill it and start it again."""
    return owned(PgBouncer(server, pool_mode, **settings))
