"""A proxy before a server that can cut a connection at a message: what is the same for all protocols."""

from __future__ import annotations

import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

__all__ = ["CutConnection", "CuttingProxy", "Trap"]


class Trap:
    """Waits for the `nth` message that `pattern` is found in, and springs once.

    `before` is called before the server gets that message. Without it the server gets the message, and its answer is
    swallowed: the connection is cut on both sides instead.
    """

    def __init__(self, pattern: bytes, nth: int = 1, before: Callable[[], object] | None = None) -> None:
        self.before = before
        self.sprung = threading.Event()
        self._pattern = re.compile(pattern)
        self._left = nth
        self._lock = threading.Lock()

    def takes(self, message: bytes) -> bool:
        """Return whether this is the message; true only once."""
        if self._pattern.search(message) is None:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0


T = TypeVar("T", bound=Trap)


class CuttingProxy(Generic[T]):
    """Stands before one server, for any number of connections at a time, also while the server is down.

    `turned_away` counts the connections that came while it was.
    """

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], socket.socket],
        connection: Callable[[socket.socket, socket.socket, Sequence[T]], CutConnection[T]],
    ) -> None:
        self.turned_away = 0
        self._traps: list[T] = []
        self._listening = listening
        self._connect = connect
        self._connection = connection
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def set(self, trap: T) -> T:
        """Arm a trap, for the messages that come from now on."""
        self._traps.append(trap)
        return trap

    def close(self) -> None:
        """Take no more connections; those that are open end with their clients."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:  # it is down, which the client sees as a lost connection
                self.turned_away += 1
                client.close()
                continue
            self._connection(client, server, self._traps).start()


class CutConnection(ABC, Generic[T]):
    """One client's connection: a thread each way. Whichever ends first cuts both."""

    def __init__(self, client: socket.socket, server: socket.socket, traps: Sequence[T]) -> None:
        self._client = client
        self._server = server
        self._traps = traps

    def start(self) -> None:
        there = threading.Thread(target=self._until_cut, args=(self._to_server,), name="proxy-to-server", daemon=True)
        there.start()
        threading.Thread(target=self._back, args=(there,), name="proxy-to-client", daemon=True).start()

    @abstractmethod
    def _to_server(self) -> None:
        """Pass on what the client sends, message by message: each is given to `_spring` first."""

    @abstractmethod
    def _to_client(self) -> None:
        """Pass on what the server sends, but for an answer that is swallowed: there it ends."""

    @abstractmethod
    def _swallow(self, trap: T, message: bytes) -> None:
        """Keep in mind that the answer to this message is a trap's."""

    def _spring(self, message: bytes) -> None:
        for trap in self._traps:
            if not trap.takes(message):
                continue
            if trap.before is None:
                self._swallow(trap, message)
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
