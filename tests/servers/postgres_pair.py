"""A PostgreSQL primary and its standbys, which take turns."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg

from exactsink.testing.processes import wait_gone
from tests.servers.postgres import Postgres, PostgresServer
from tests.servers.waiting import wait_until


class Pair(Postgres):
    """Two places with a server each. A client finds the primary in either place."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exactsink-pg-"))))
        self._stack = stack
        self.primary = self.new(None)
        self._put(self.primary, lambda found: not found.exists())
        self.primary.start()

    def conninfo(self, database: str = "postgres", role: str = "postgres") -> str:
        hosts = f"{self.folder}/a,{self.folder}/b"
        return f"host={hosts} dbname={database} user={role} target_session_attrs=read-write"

    def new(self, of: PostgresServer | None) -> PostgresServer:
        """Make a server, or a standby of another server. It has no place, and is not started."""
        server = PostgresServer(of=of)
        self._stack.callback(server.remove)
        return server

    def standby(self) -> PostgresServer:
        """Start a standby, for which every commit waits from now on. Once promoted, it waits for none."""
        self.primary.name_standbys("")
        standby = self.new(self.primary)
        self._put(standby, lambda found: found != self.primary.folder)
        standby.start()
        self.primary.name_standbys("*")
        synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: self.primary.execute(synchronous) == [(1,)], "the standby")
        return standby

    def took_over(self, standby: PostgresServer) -> None:
        """Take a promoted standby for the primary. If it has no place, it gets the primary's."""
        primary, self.primary = self.primary, standby
        primary.stop("immediate")
        if not any(found.resolve() == standby.folder for found in self._places()):
            self._put(standby, lambda found: found == primary.folder)

    def _put(self, server: PostgresServer, instead: Callable[[Path], bool]) -> None:
        place = next(place for place in self._places() if instead(place.resolve()))
        place.unlink(missing_ok=True)
        place.symlink_to(server.folder)

    def _places(self) -> list[Path]:
        return [self.folder / "a", self.folder / "b"]


def fail_over(primary: int, standby: str, how: signal.Signals = signal.SIGQUIT) -> None:
    """Crash the primary, by its process id, and promote its standby. With SIGINT, the primary stops cleanly."""
    crash(primary, how)
    with psycopg.connect(standby, autocommit=True) as session:
        session.execute("SELECT pg_promote()")


def halt(standby: int, primary: str) -> None:
    """Crash a standby, by its process id, once it has replayed everything. From now on it lags behind."""
    replayed = "SELECT bool_and(replay_lsn >= pg_current_wal_flush_lsn()) FROM pg_stat_replication"
    with psycopg.connect(primary, autocommit=True) as session:
        wait_until(lambda: session.execute(replayed).fetchall() == [(True,)], "the standby to have all")
    crash(standby)


def crash(server: int, how: signal.Signals = signal.SIGQUIT) -> None:
    """Crash a server by its process id, and wait for its end."""
    os.kill(server, how)
    wait_gone(server)
