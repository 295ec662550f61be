"""A proxy before a PostgreSQL server. It passes all bytes on, until a message comes that a trap waits for.

It listens on its own unix socket, and reads the clients' side of the protocol message by message, so that a trap
springs between two messages or between a statement and its answer, never somewhere in a packet.
"""

from __future__ import annotations

import re
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.postgres import PORT, Postgres

_SOCKET = ".s.PGSQL.{}"
_STATEMENT = (b"Q", b"P")  # the messages that hold a statement's text: simple query, parse
_READY = b"Z"  # the server's last word on what it was asked


class Trap:
    """Wait for the `nth` message in which `pattern` is found, and spring once.

    `before` is called before the server gets that message. Without it, the server gets the message, and its answer is
    lost: the connection is cut on both sides instead.
    """

    def __init__(self, pattern: bytes, nth: int = 1, before: Callable[[], object] | None = None) -> None:
        self.before = before
        self.sprung = threading.Event()
        self._pattern = re.compile(pattern)
        self._left = nth
        self._lock = threading.Lock()

    def takes(self, message: bytes) -> bool:
        """Return whether this is the message: true only once."""
        if self._pattern.search(message) is None:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0


class PostgresProxy:
    """A proxy before a server, for many connections, even while the server is down. `way` is the server for clients."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.way = Postgres(folder)
        self._traps: list[Trap] = []
        self._server = server.folder / _SOCKET.format(server.port)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / _SOCKET.format(PORT)))
        self._listening.listen()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def set(self, trap: Trap) -> Trap:
        """Arm a trap, for the messages that come from now on."""
        self._traps.append(trap)
        return trap

    def close(self) -> None:
        """Take no more connections. Open connections end with their clients."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._server))
            except OSError:  # the server is down: the client sees a lost connection
                server.close()
                client.close()
                continue
            _Connection(client, server, self._traps).start()


class _Connection:
    """One client's connection, with a thread for each direction. The first to end cuts both."""

    def __init__(self, client: socket.socket, server: socket.socket, traps: Sequence[Trap]) -> None:
        self._client = client
        self._server = server
        self._traps = traps
        self._swallowed: Trap | None = None

    def start(self) -> None:
        there = threading.Thread(target=self._until_cut, args=(self._to_server,), name="proxy-to-server", daemon=True)
        there.start()
        threading.Thread(target=self._back, args=(there,), name="proxy-to-client", daemon=True).start()

    def _to_server(self) -> None:
        with self._client.makefile("rb") as incoming:
            for kind, message in _messages(incoming.read, first=True):
                if kind in _STATEMENT:
                    self._spring(message)
                self._server.sendall(message)

    def _to_client(self) -> None:
        with self._server.makefile("rb") as incoming:
            for kind, message in _messages(incoming.read, first=False):
                trap = self._swallowed
                if trap is None:
                    self._client.sendall(message)
                elif kind == _READY:
                    self._client.shutdown(socket.SHUT_RDWR)
                    trap.sprung.set()
                    return

    def _spring(self, message: bytes) -> None:
        for trap in self._traps:
            if not trap.takes(message):
                continue
            if trap.before is None:
                self._swallowed = trap
            else:
                trap.before()
                trap.sprung.set()

    def _back(self, there: threading.Thread) -> None:
        self._until_cut(self._to_client)
        there.join()
        self._client.close()
        self._server.close()

    def _until_cut(self, copy: Callable[[], None]) -> None:
        try:
            with suppress(OSError):
                copy()
        finally:
            for end in (self._client, self._server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def _messages(read: Callable[[int], bytes], *, first: bool) -> Iterator[tuple[bytes, bytes]]:
    """Cut a stream into messages, each with its kind. A client's first message has none. Ends with the stream."""
    kind = b""
    while first or (kind := read(1)):
        first = False
        length = read(4)
        if len(length) < 4:
            return
        yield kind, kind + length + read(struct.unpack(">i", length)[0] - 4)


@contextmanager
def cutting_proxy(server: Postgres) -> Iterator[PostgresProxy]:
    """Run a proxy before a server. It is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="exactsink-cut-") as folder:  # a socket's path is short
        proxy = PostgresProxy(server, Path(folder))
        try:
            yield proxy
        finally:
            proxy.close()
