"""A proxy before a Kafka broker. It passes requests and answers on, but strikes some requests with rows."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress

_PRODUCE = 0
FAULTS = ("lost", "before", "late", "slow")
"""The broker does the work, and its answer is lost; it never gets the request; it gets the request after the client has
continued over another connection; it gets the request late."""


class KafkaProxy:
    """A proxy before a broker that advertises `port`. It strikes each request with rows with a `chance`, by its seed.

    Each answer waits up to `slow` seconds, one after the other.
    """

    def __init__(self, port: int, broker: str, seed: int) -> None:
        self.chance = self.slow = 0.0
        self.struck: Counter[str] = Counter()
        host, number = broker.split(":")
        self._broker = (host, int(number))
        self._rng = random.Random(seed)
        self._listening = socket.create_server(("127.0.0.1", port), backlog=100)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                broker = socket.create_connection(self._broker)
            except ConnectionRefusedError:  # it is down
                client.close()
            except OSError:
                return
            else:
                lost: set[bytes] = set()
                for way in (self._to_broker, self._to_client):
                    threading.Thread(target=_until_cut, args=(way, client, broker, lost), daemon=True).start()

    def _to_broker(self, client: socket.socket, broker: socket.socket, lost: set[bytes]) -> None:
        with client.makefile("rb") as requests:
            while message := _message(requests):
                fault = ""
                if struct.unpack_from(">h", message, 4)[0] == _PRODUCE and self._rng.random() < self.chance:
                    fault = self._rng.choice(FAULTS)
                    self.struck[fault] += 1
                if fault == "before":
                    return
                if fault == "late":
                    client.shutdown(socket.SHUT_RDWR)
                if fault in ("late", "slow"):
                    time.sleep(self._rng.random() / 5)
                if fault == "lost":
                    lost.add(message[8:12])
                broker.sendall(message)

    def _to_client(self, client: socket.socket, broker: socket.socket, lost: set[bytes]) -> None:
        with broker.makefile("rb") as answers:
            while (message := _message(answers)) and message[4:8] not in lost:
                time.sleep(self._rng.random() * self.slow)
                client.sendall(message)


def _message(stream: object) -> bytes:
    """Read a whole message, with its length; empty at the stream's end."""
    length = stream.read(4)  # type: ignore[attr-defined]
    return length + stream.read(struct.unpack(">i", length)[0]) if len(length) == 4 else b""  # type: ignore[attr-defined]


def _until_cut(way: object, client: socket.socket, broker: socket.socket, lost: set[bytes]) -> None:
    """Pass bytes on in one direction. The first end cuts both directions."""
    with suppress(OSError):
        way(client, broker, lost)  # type: ignore[operator]
    for end in (client, broker):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
