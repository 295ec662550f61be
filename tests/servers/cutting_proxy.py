"""A way to a PostgreSQL server that can break: it hands all bytes on, until a message comes that a trap waits for.

It listens on a unix socket of its own and reads the clients' side of the protocol message by message, so that a trap
springs between two messages or between a statement and its answer, never somewhere in a packet.
"""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.cutting import CutConnection, Trap
from tests.servers.postgres import PORT, Postgres

__all__ = ["CuttingProxy", "Trap", "cutting_proxy"]

_SOCKET = ".s.PGSQL.{}"
_STATEMENT = (b"Q", b"P")  # the messages that hold a statement's text: simple query, parse
_READY = b"Z"  # the server's last word on what it was asked


class CuttingProxy:
    """Stands before one server, for any number of connections at a time, also while the server is down."""

    def __init__(self, server: Postgres) -> None:
        self._server = server.folder / _SOCKET.format(server.port)
        self._folder = Path(tempfile.mkdtemp(prefix="exactsink-cut-"))  # a socket's path is short
        self._traps: list[Trap] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self._folder / _SOCKET.format(PORT)))
        self._listening.listen()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def way(self) -> Postgres:
        """The server as those see it who come this way."""
        return Postgres(self._folder)

    def set(self, trap: Trap) -> Trap:
        """Arm a trap, for the statements that come from now on."""
        self._traps.append(trap)
        return trap

    def close(self) -> None:
        """Take no more connections; those that are open end with their clients."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()
        shutil.rmtree(self._folder)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._server))
            except OSError:  # it is down, which the client sees as a lost connection
                client.close()
                server.close()
                continue
            _Connection(client, server, self._traps).start()


class _Connection(CutConnection[Trap]):
    _swallowed: Trap | None = None

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

    def _swallow(self, trap: Trap, message: bytes) -> None:
        self._swallowed = trap


def _messages(read: Callable[[int], bytes], *, first: bool) -> Iterator[tuple[bytes, bytes]]:
    """Cut a stream into messages, each with its kind; a client's first one has none. Ends with the stream."""
    kind = b""
    while first or (kind := read(1)):
        first = False
        length = read(4)
        if len(length) < 4:
            return
        yield kind, kind + length + read(struct.unpack(">i", length)[0] - 4)


@contextmanager
def cutting_proxy(server: Postgres) -> Iterator[CuttingProxy]:
    """Return a proxy before a server, gone at the end."""
    proxy = CuttingProxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
