"""PostgreSQL servers for tests: private, on a unix socket only, and gone with the last process that uses them.

A server dies with the process that started it, even if that is killed. A whole run's shared server is kept by
`python -m tests.servers.postgres FOLDER NAME RELEASE`. Its release is Debian's, or EXACTSINK_TESTS_POSTGRES.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

from tests.servers.keeper import keep, shared
from tests.servers.process import ServerProcess, owned
from tests.servers.releases import unpacked_release
from tests.servers.waiting import wait_until

__all__ = ["RELEASE", "Postgres", "PostgresServer", "own_postgres", "programs", "server_user", "shared_postgres"]
__all__ += ["wait_until"]

INSTALL = "apt-get update && apt-get install -y --no-install-recommends postgresql"
OLDEST = 15
RELEASE = os.environ.get("EXACTSINK_TESTS_POSTGRES") or ""
PORT = "5432"
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SETTINGS = {"max_prepared_transactions": "64", "max_connections": "200", "shared_buffers": "32MB", "fsync": "on"}


class Postgres:
    """A running server, for users who must not stop it."""

    def __init__(self, folder: Path, port: str = PORT) -> None:
        self.folder = folder
        self.port = port  # also the socket's name

    def url(self, database: str = "postgres", role: str = "postgres", password: str = "") -> str:
        """Return SQLAlchemy's URL. Any password is right, because the socket's folder protects the server."""
        secret = f":{password}" if password else ""
        return f"postgresql+psycopg://{role}{secret}@/{database}?host={self.folder}"

    def conninfo(self, database: str = "postgres", role: str = "postgres") -> str:
        """Return libpq's connection string."""
        there = "" if self.port == PORT else f" port={self.port}"
        return f"host={self.folder} dbname={database} user={role}{there}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement, in autocommit and as the server's superuser. Return its rows."""
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def name_standbys(self, names: str) -> None:
        """Let commits wait for these standbys from now on; every session knows it when this returns.

        A session shows the setting before commits wait, because the checkpointer alone passes it on to commits.
        """
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.execute("SHOW synchronous_standby_names") == [(names,)], "the setting")
        self.execute("CHECKPOINT")  # the checkpointer reads its settings before it begins one

    def create_database(self, name: str) -> str:
        """Make a database and return its URL."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def new_database(self, stem: str) -> str:
        """Make a database with a unique name, and return its connection string."""
        name = f"{stem}_{uuid.uuid4().hex[:12]}"
        self.create_database(name)
        return self.conninfo(name)


class PostgresServer(ServerProcess, Postgres):
    """A server with a new data folder of its own: `start` and `stop` it at will, `remove` it at the end.

    As a standby `of` another server, it begins with that server's present data, and follows it once it is started.
    """

    _crash = signal.SIGQUIT

    def __init__(
        self, settings: Mapping[str, str] | None = None, of: Postgres | None = None, release: str = RELEASE
    ) -> None:
        self._programs = programs(release)
        # Not in pytest's folder, because a socket's path must be short, and the server's user must read it.
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-pg-")), (settings or {}).get("port", PORT))
        self._settings = {**SETTINGS, **(settings or {}), "unix_socket_directories": str(self.folder)}
        if "user" in server_user():
            shutil.chown(self.folder, "postgres", "postgres")
        made = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        copied = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-d"]
        command: list[str | Path] = [self._programs / "initdb", "-D", self._data, *made]
        if of is not None:  # a newer pg_basebackup writes a primary_conninfo with options that an older server lacks
            self._settings["primary_conninfo"] = of.conninfo()
            command = [client("pg_basebackup", self._programs), "-D", self._data, *copied, of.conninfo()]
        self._prepare(command)

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop, and wait for the end. `immediate` is a crash: the next start recovers."""
        self._end(SIGNALS[mode])

    def save(self, name: str) -> None:
        """Stop, copy the data folder under this name, and start again."""
        self.stop()
        subprocess.run(["cp", "-a", self._data, self.folder / name], check=True)
        self.start()

    def put_back(self, name: str) -> None:
        """Stop, and start with the data folder that was saved under this name."""
        self.stop("immediate")
        shutil.rmtree(self._data)
        subprocess.run(["cp", "-a", self.folder / name, self._data], check=True)
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _command(self) -> Sequence[str | Path]:
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        return [self._programs / "postgres", "-D", self._data, "--listen_addresses=", *options]

    def _user(self) -> Mapping[str, Any]:
        return server_user()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo()).close()
        except psycopg.OperationalError:
            return False
        return True


def own_postgres(
    settings: Mapping[str, str] | None = None, of: Postgres | None = None, release: str = RELEASE
) -> AbstractContextManager[PostgresServer]:
    """Start a server for one owner, who may stop it and start it again. It takes a second or two to make."""
    return owned(PostgresServer(settings, of, release))


@contextmanager
def shared_postgres(basetemp: Path, release: str = RELEASE) -> Iterator[Postgres]:
    """Share one server among a run's workers. They make their own databases, and must not change the server."""
    programs(release)  # fetched here, where errors are reported and time is left
    with shared(basetemp, f"postgres{release}", "tests.servers.postgres", release) as folder:
        yield Postgres(Path(folder))


def programs(release: str = RELEASE) -> Path:
    """Find a release's programs, or the newest ones: in Debian's folder, or else on the PATH."""
    if release:
        return unpacked_release("postgres", release)
    versions = {p.parent.parent.name: p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")}
    newest = max((int(name) for name in versions if name.isdigit()), default=0)
    if newest >= OLDEST:
        return versions[str(newest)]
    found = shutil.which("initdb")
    if found is None:
        raise RuntimeError(f"these tests need PostgreSQL {OLDEST} or newer; run: {INSTALL}")
    return Path(found).resolve().parent


def client(name: str, of: Path | None = None) -> Path:
    """Find a client of the server. If its release has none, the newest release's client also works."""
    own = (of or programs()) / name
    return own if own.exists() else unpacked_release("postgres", "18-pypi") / name


def server_user() -> dict[str, Any]:
    """Return the user that the server runs as, because it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


if __name__ == "__main__":
    with own_postgres(release=sys.argv[3]) as kept:
        keep(Path(sys.argv[1]), sys.argv[2], str(kept.folder), kept.remove)
