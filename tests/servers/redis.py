"""Redis servers for tests: private, on a port of 127.0.0.1, and gone with the process that uses them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.servers.packages import unpacked
from tests.servers.ports import Ports
from tests.servers.process import ServerProcess, owned

SETTINGS = ("--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction", "--save ''")


class RedisServer(ServerProcess):
    """A server with its own new data folder: `start` and `kill` it at will, `remove` it at the end."""

    def __init__(self, settings: Sequence[str] = SETTINGS) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="exactsink-redis-"))
        self._ports = Ports(1)
        (self.port,) = self._ports.numbers
        self._settings = settings

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def execute(self, *command: str) -> Any:
        with closing(redis.Redis.from_url(self.url, decode_responses=True)) as client:
            return client.execute_command(*command)

    def _command(self) -> Sequence[str]:
        program = unpacked("redis-server", "redis-tools") / "usr/bin/redis-server"
        said = [part.strip("'") for setting in self._settings for part in setting.split(" ", 1)]
        return [str(program), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), *said]

    def _answers(self) -> bool:
        try:
            return bool(self.execute("PING"))
        except redis.RedisError:  # not yet, or it is loading
            return False


@contextmanager
def own_redis(settings: Sequence[str] = SETTINGS) -> Iterator[RedisServer]:
    """Start a server for one owner."""
    with owned(RedisServer(settings)) as server:
        yield server
