"""MariaDB servers for tests: private, on a unix socket only, and gone with the last process that uses them.

A server dies with the thread that started it, even if its process is killed. A whole run's shared server is kept by
`python -m tests.servers.mariadb FOLDER NAME`. Its release is Debian's, or EXACTSINK_TESTS_MARIADB (for example 11.4).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import pymysql

from tests.servers.keeper import keep, shared
from tests.servers.process import ServerProcess, owned
from tests.servers.releases import unpacked_release

INSTALL = "apt-get update && apt-get install -y --no-install-recommends mariadb-server-core mariadb-client-core"
RELEASE = os.environ.get("EXACTSINK_TESTS_MARIADB") or ""
SETTINGS = {"innodb-buffer-pool-size": "64M", "innodb-log-file-size": "32M", "max-connections": "200"}


class MariaDB:
    """A running server, for users who must not stop it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    def url(self, database: str, user: str = "root") -> str:
        """Return SQLAlchemy's URL, without a password, because the socket's folder protects the server."""
        return f"mysql+pymysql://{user}@localhost/{database}?unix_socket={self.socket}"

    def connect(self, database: str | None = None) -> pymysql.Connection[Any]:
        """Connect as root, in autocommit."""
        return pymysql.connect(
            unix_socket=str(self.socket), user="root", database=database, charset="utf8mb4", autocommit=True
        )

    def execute(self, *statements: str, database: str | None = None) -> list[Any]:
        """Run statements, in autocommit and as root. Return the last statement's rows."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def new_database(self, stem: str) -> str:
        """Make a database with a unique name, and return the name."""
        name = f"{stem}_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return name


class MariaDBServer(ServerProcess, MariaDB):
    """A server with its own new data folder: `start` and `stop` it at will, `remove` it at the end."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-maria-")))
        self._settings = {**SETTINGS, **(settings or {})}
        if _server_user():
            shutil.chown(self.folder, "nobody", "nogroup")
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        self._prepare([program("mariadb-install-db"), "--no-defaults", *self._place, *options])

    def stop(self, mode: Literal["fast", "kill"] = "fast") -> None:
        """Stop, and wait for the end. `kill` is a crash: the next start recovers."""
        self._end(signal.SIGKILL if mode == "kill" else signal.SIGTERM)

    @property
    def _place(self) -> list[str]:
        return [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]

    def _command(self) -> Sequence[str]:
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        there = [*self._place, f"--socket={self.socket}", f"--pid-file={self.folder / 'pid'}", "--skip-networking"]
        return [program("mariadbd"), "--no-defaults", *there, *options]

    def _user(self) -> Mapping[str, Any]:
        return _server_user()

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.OperationalError:
            return False
        return True


def own_mariadb(settings: Mapping[str, str] | None = None) -> AbstractContextManager[MariaDBServer]:
    """Start a server for one owner, who may stop it and start it again. It takes some seconds to make."""
    return owned(MariaDBServer(settings))


@contextmanager
def shared_mariadb(basetemp: Path) -> Iterator[MariaDB]:
    """Share one server among a run's workers. They make their own databases, and must not change the server."""
    with shared(basetemp, "mariadb", "tests.servers.mariadb") as folder:
        yield MariaDB(Path(folder))


def program(name: str, release: str = RELEASE) -> str:
    """Find a program of a release; without one, of the installed server. Debian's is only on root's PATH."""
    if release:
        programs = unpacked_release("mariadb", release)
        return str(
            next(folder / name for folder in (programs, programs.with_name("scripts")) if (folder / name).exists())
        )
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        raise RuntimeError(f"these tests need MariaDB; run: {INSTALL}")
    return found


def _server_user() -> dict[str, Any]:
    """Return the user that the server runs as, because it refuses to run as root."""
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


if __name__ == "__main__":
    with own_mariadb() as kept:
        keep(Path(sys.argv[1]), "mariadb", str(kept.folder), kept.remove)
