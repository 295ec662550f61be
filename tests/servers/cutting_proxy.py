"""A way to a PostgreSQL server that can break: it hands all bytes on, until a message comes that a trap waits for.

It listens on a unix socket of its own and reads the clients' side of the protocol message by message, so that a trap
springs between two messages or between a statement and its answer, never somewhere in a packet.
"""

from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.cutting import CutConnection, CuttingProxy, Trap
from tests.servers.postgres import PORT, Postgres

__all__ = ["PostgresProxy", "Trap", "cutting_proxy"]

_SOCKET = ".s.PGSQL.{}"
_STATEMENT = (b"Q", b"P")  # the messages that hold a statement's text: simple query, parse
_READY = b"Z"  # the server's last word on what it was asked


class PostgresProxy(CuttingProxy[Trap]):
    """`way` is the server as those see it who come this way."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.way = Postgres(folder)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(folder / _SOCKET.format(PORT)))
        listening.listen()
        super().__init__(listening, lambda: _connected(server.folder / _SOCKET.format(server.port)), _Connection)


def _connected(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(str(path))
    except OSError:
        server.close()
        raise
    return server


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
def cutting_proxy(server: Postgres) -> Iterator[PostgresProxy]:
    """Return a proxy before a server, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="exactsink-cut-") as folder:  # a socket's path is short
        proxy = PostgresProxy(server, Path(folder))
        try:
            yield proxy
        finally:
            proxy.close()
