"""The driver's one session with a server, kept open between epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from exactsink_postgres.server import Server, explained

__all__ = ["IDLE_SECONDS", "KeptSession"]

IDLE_SECONDS = 60.0
"""A session that was idle for longer is replaced unasked: a firewall may have dropped it without a word."""


class KeptSession:
    """Gives a session in autocommit that answers: the last one, or a new one in its place. For one thread at a time.

    No statement waits for a lock longer than `lock_timeout_seconds`; 0 is the server's own setting.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        lock_timeout_seconds: float = 0,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._name = name
        self._lock_timeout = math.ceil(lock_timeout_seconds * 1000)
        self._now = now
        self._connection: psycopg.Connection | None = None
        self._used = 0.0

    @contextmanager
    def use(self, doing: str, safe: str = "") -> Iterator[psycopg.Connection]:
        """Return the session for a call. The server's errors become ours: `doing` failed, `safe` is what that means."""
        connection = self._answering() or self._connected()
        try:
            with explained(doing, safe):
                yield connection
        finally:
            self._used = self._now()

    def close(self) -> None:
        """End the session. Idempotent; `use` opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection:
        self.close()
        self._connection = self._server.connect(self._name)
        if self._lock_timeout:
            with explained("set the session's lock_timeout"):
                self._connection.execute(f"SET lock_timeout = {self._lock_timeout}".encode())
        return self._connection

    def _answering(self) -> psycopg.Connection | None:
        """Return the open session when it can take a statement: what broke off before may have left it in anything."""
        connection = self._connection
        if connection is None or self._now() - self._used > IDLE_SECONDS:
            return None
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            return None
        idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        return connection if idle else None
