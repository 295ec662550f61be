"""A way to a Kafka broker that can break: it hands all bytes on, until a request comes that a trap waits for.

It reads the clients' side of the protocol request by request, so that a trap springs between two requests or between a
request and its answer, never somewhere in a packet.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from tests.servers.cutting import CutConnection, Trap
from tests.servers.kafka import KafkaServer
from tests.servers.ports import Ports

__all__ = ["CutKafka", "CuttingProxy", "EndTxnTrap", "cut_kafka"]

_END_TXN = 26
_WAY = "CUT"  # the listener whose address is reported as the proxy's


class EndTxnTrap(Trap):
    """Waits for the `nth` request that ends a transaction whose id holds `pattern`."""

    def __init__(self, pattern: str, nth: int = 1, before: Callable[[], object] | None = None) -> None:
        super().__init__(pattern.encode(), nth, before)

    def takes(self, message: bytes) -> bool:
        return struct.unpack_from(">h", message, 4) == (_END_TXN,) and super().takes(message)


class CuttingProxy:
    """Stands before one broker, for any number of connections at a time, also while the broker is down.

    `turned_away` counts the connections that came while it was.
    """

    def __init__(self, port: int) -> None:
        self.target = 0  # the broker's port, once it is known
        self.turned_away = 0
        self._traps: list[EndTxnTrap] = []
        self._listening = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{port}"
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def set(self, trap: EndTxnTrap) -> EndTxnTrap:
        """Arm a trap, for the requests that come from now on."""
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
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # it is down, which the client sees as a lost connection
                self.turned_away += 1
                client.close()
                continue
            _Connection(client, server, self._traps).start()


class _Connection(CutConnection[EndTxnTrap]):
    _swallowed: tuple[bytes, EndTxnTrap] | None = None

    def _to_server(self) -> None:
        with self._client.makefile("rb") as incoming:
            for request in _packets(incoming.read):
                self._spring(request)
                self._server.sendall(request)

    def _to_client(self) -> None:
        with self._server.makefile("rb") as incoming:
            for answer in _packets(incoming.read):
                if self._swallowed is not None and answer[4:8] == self._swallowed[0]:
                    self._swallowed[1].sprung.set()
                    return
                self._client.sendall(answer)

    def _swallow(self, trap: EndTxnTrap, message: bytes) -> None:
        self._swallowed = message[8:12], trap  # the number that its answer bears


class CutKafka(KafkaServer):
    """A broker that is reached by `bootstrap` as ever, and by `proxy`, where its clients are reported to stay."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self.proxy = proxy
        super().__init__(listeners={_WAY: "PLAINTEXT"})
        proxy.target = int(self.address(_WAY).rpartition(":")[2])

    def _network(self, protocols: Mapping[str, str]) -> dict[str, str]:
        found = super()._network(protocols)
        reported = found["advertised.listeners"].replace(self.address(_WAY), self.proxy.address)
        return {**found, "advertised.listeners": reported}


@contextmanager
def cut_kafka() -> Iterator[CutKafka]:
    """Return a started broker with a proxy before it, to one owner."""
    ports = Ports(1)
    proxy = CuttingProxy(ports.numbers[0])
    try:
        server = CutKafka(proxy)
        try:
            server.start()
            yield server
        finally:
            server.remove()
    finally:
        proxy.close()
        ports.close()


def _packets(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Cut a stream into requests, or answers: each with its length before it. Ends with the stream."""
    while len(length := read(4)) == 4:
        yield length + read(struct.unpack(">i", length)[0])
