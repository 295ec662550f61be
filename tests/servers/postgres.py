"""PostgreSQL servers for tests: private, on a unix socket only, and gone with the last process that uses them.

A server dies with the process that started it, also when that is killed. One that a whole run shares is started by a
keeper, a process that waits until the kernel says that no user is left: `python -m tests.servers.postgres FOLDER`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

__all__ = ["Postgres", "PostgresServer", "own_postgres", "shared_postgres", "wait_until"]

INSTALL = "apt-get update && apt-get install -y --no-install-recommends postgresql"
OLDEST = 15
PORT = "5432"
PATIENCE = 120  # seconds until a server that does not come says so
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SETTINGS = {"max_prepared_transactions": "64", "max_connections": "200", "shared_buffers": "32MB", "fsync": "on"}


class Postgres:
    """A running server, as those see it who may use it but not stop it."""

    def __init__(self, folder: Path, port: str = PORT) -> None:
        self.folder = folder
        self.port = port  # names the socket too

    def url(self, database: str = "postgres", role: str = "postgres", password: str = "") -> str:
        """Give SQLAlchemy's URL. Any password is right: the socket's folder is the lock."""
        secret = f":{password}" if password else ""
        return f"postgresql+psycopg://{role}{secret}@/{database}?host={self.folder}"

    def conninfo(self, database: str = "postgres", role: str = "postgres") -> str:
        """Give libpq's connection string."""
        there = "" if self.port == PORT else f" port={self.port}"
        return f"host={self.folder} dbname={database} user={role}{there}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement, in autocommit and as the server's superuser; give its rows."""
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str) -> str:
        """Make a database; give its URL."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def new_database(self, stem: str) -> str:
        """Make a database that no other test has; give its connection string."""
        name = f"{stem}_{uuid.uuid4().hex[:12]}"
        self.create_database(name)
        return self.conninfo(name)


class PostgresServer(Postgres):
    """A server with a new data folder of its own: `start` and `stop` it at will, `remove` it at the end."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._programs = _programs()
        # Not in pytest's folder: a socket's path is short, and the server's user must get there.
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-pg-")), (settings or {}).get("port", PORT))
        self._settings = {**SETTINGS, **(settings or {}), "unix_socket_directories": str(self.folder)}
        self._process: subprocess.Popen[bytes] | None = None
        if "user" in _server_user():
            shutil.chown(self.folder, "postgres", "postgres")
        initdb = [self._programs / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        done = self._run([*initdb, "--locale=C", "--no-sync", "--no-instructions"])
        if done.wait() != 0:
            log = self._log()
            self.remove()
            raise RuntimeError(f"initdb failed:\n{log}")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert self._process is None, "the server runs"
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        # Dies with this process; setpriv becomes the server, so the process id is the server's.
        tied = ["setpriv", "--pdeathsig", "QUIT", "--"]
        command = [*tied, self._programs / "postgres", "-D", self._data, "--listen_addresses=", *options]
        self._process = process = self._run(command)
        wait_until(lambda: self._answers(process), f"the server in {self.folder} to answer")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop, and wait until it is gone. `immediate` is a crash: the next start recovers."""
        if self._process is not None:
            self._process.send_signal(SIGNALS[mode])
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        """Stop, and remove all that is kept. Idempotent."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            self._process = None
            raise RuntimeError(f"the server ended with {process.returncode}:\n{self._log()}")
        try:
            psycopg.connect(self.conninfo()).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, command: list[Any]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "LC_ALL": "C"}
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                start_new_session=True,  # Ctrl-C is for pytest: it stops the server when it has torn down its tests
                **_server_user(),
            )

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]


@contextmanager
def own_postgres(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Give a started server to one owner, who may stop it and start it again. It takes a second or two to make."""
    server = PostgresServer(settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def shared_postgres(basetemp: Path) -> Iterator[Postgres]:
    """Give the server that all workers of this test run share; `basetemp` is pytest's. The last user's end stops it.

    Each user makes databases of its own, and must not change what belongs to the whole server.
    """
    folder = basetemp.parent if "PYTEST_XDIST_WORKER" in os.environ else basetemp
    with open(folder / "postgres.users", "a") as users, open(folder / "postgres.guard", "a") as guard:
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a keeper that is stopping its server already
        fcntl.flock(guard, fcntl.LOCK_EX)
        place = folder / "postgres.folder"
        if not place.exists():
            _start_keeper(folder, place)
        fcntl.flock(guard, fcntl.LOCK_UN)
        yield Postgres(Path(place.read_text()))


def _start_keeper(folder: Path, place: Path) -> None:
    log = folder / "postgres.keeper.log"
    root = Path(__file__).parents[2]
    with open(log, "wb") as output:  # never a pipe of the worker's: its reader would wait for the keeper's end
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.postgres", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=root,
            start_new_session=True,
        )

    def ready() -> bool:
        if keeper.poll() is not None and not place.exists():
            raise RuntimeError(f"the tests' PostgreSQL did not start:\n{log.read_text(errors='replace')}")
        return place.exists()

    wait_until(ready, "the tests' PostgreSQL to start")
    keeper.returncode = 0  # not this process's to wait for: it ends after it


def _keep(folder: Path) -> None:
    """Run a server until no process holds the users' lock any more, however each of them ended."""
    place = folder / "postgres.folder"
    with own_postgres() as server, open(folder / "postgres.users", "a") as users:
        written = folder / "postgres.folder.new"
        written.write_text(str(server.folder))
        written.rename(place)
        fcntl.flock(users, fcntl.LOCK_EX)
        place.unlink()
        server.remove()  # under the lock: whoever comes now waits, and starts another


def _programs() -> Path:
    """Find the newest server's programs: where Debian keeps them, else on the PATH."""
    versions = {p.parent.parent.name: p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")}
    newest = max((int(name) for name in versions if name.isdigit()), default=0)
    if newest >= OLDEST:
        return versions[str(newest)]
    found = shutil.which("initdb")
    if found is None:
        raise RuntimeError(f"these tests need PostgreSQL {OLDEST} or newer; run: {INSTALL}")
    return Path(found).resolve().parent


def _server_user() -> dict[str, Any]:
    """Say as whom the server runs: it refuses to be root's."""
    if os.geteuid() != 0:
        return {}
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Look again and again until it is so. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE} s for {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
