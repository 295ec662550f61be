"""TCP ports for servers of tests that stop and start again. Nobody else gets the ports meanwhile."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_LOWEST, _HIGHEST = 20_000, 32_000
_TRIES = 200


class Ports:
    """Some free ports on 127.0.0.1, which belong to this process until `close`, or until its end.

    They are `among` these, or else below the kernel's ports for clients. A client that calls a stopped server's
    port repeatedly would in the end be connected to itself. A name in the kernel's abstract socket namespace keeps
    other test processes from each port, even while no server listens.
    """

    def __init__(self, count: int, among: range | None = None) -> None:
        self._held = ExitStack()
        among = among or range(_LOWEST, max(min(_HIGHEST, _first_of_clients()), _LOWEST + 1000))
        self.numbers = [self._take(among) for _ in range(count)]

    def close(self) -> None:
        """Release the ports. Idempotent."""
        self._held.close()

    def _take(self, among: range) -> int:
        for _ in range(_TRIES):
            port = random.choice(among)
            name = socket.socket(socket.AF_UNIX)
            with socket.socket() as probe:
                try:
                    name.bind(f"\0exactsink.tests.port.{port}")
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    name.close()
                    continue
            self._held.callback(name.close)
            return port
        self.close()
        raise RuntimeError(f"no free port on 127.0.0.1 from {among.start} to {among.stop - 1}")


def _first_of_clients() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
