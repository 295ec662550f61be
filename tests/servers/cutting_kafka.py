"""A way to a Kafka broker that can break: it hands all bytes on, until a request comes that a trap waits for.

It reads the clients' side of the protocol request by request, so that a trap springs between two requests or between a
request and its answer, never somewhere in a packet.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from tests.servers.cutting import CutConnection, CuttingProxy, Trap
from tests.servers.kafka import KafkaServer
from tests.servers.ports import Ports

__all__ = ["CutKafka", "EndTxnTrap", "cutting_kafka"]

_END_TXN = 26
_WAY = "CUT"  # the listener whose address is reported as the proxy's


class EndTxnTrap(Trap):
    """Waits for the `nth` request that ends a transaction whose id holds `pattern`."""

    def __init__(self, pattern: str, nth: int = 1, before: Callable[[], object] | None = None) -> None:
        super().__init__(pattern.encode(), nth, before)

    def takes(self, message: bytes) -> bool:
        return struct.unpack_from(">h", message, 4) == (_END_TXN,) and super().takes(message)


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

    def __init__(self, port: int) -> None:
        self.way = f"127.0.0.1:{port}"
        super().__init__(listeners={_WAY: "PLAINTEXT"})
        there = ("127.0.0.1", int(self.address(_WAY).rpartition(":")[2]))
        listening = socket.create_server(("127.0.0.1", port))
        self.proxy = CuttingProxy[EndTxnTrap](listening, lambda: socket.create_connection(there), _Connection)

    def _network(self, protocols: Mapping[str, str]) -> dict[str, str]:
        found = super()._network(protocols)
        reported = found["advertised.listeners"].replace(self.address(_WAY), self.way)
        return {**found, "advertised.listeners": reported}


@contextmanager
def cutting_kafka() -> Iterator[CutKafka]:
    """Return a started broker with a proxy before it, to one owner."""
    with closing(Ports(1)) as ports:
        server = CutKafka(ports.numbers[0])
        try:
            server.start()
            yield server
        finally:
            server.proxy.close()
            server.remove()


def _packets(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Cut a stream into requests, or answers: each with its length before it. Ends with the stream."""
    while len(length := read(4)) == 4:
        yield length + read(struct.unpack(">i", length)[0])
