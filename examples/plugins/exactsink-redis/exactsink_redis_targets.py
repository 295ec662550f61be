"""How the conformance kit reaches a Redis: the one that REDIS_URL names, under a prefix for each scenario."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import redis
from exactsink.contract import Backend, ConfigError
from exactsink.testing import ConformanceTarget

from exactsink_redis import RedisBackend, RedisOptions


class RedisTarget(ConformanceTarget):
    """Each id is counted where it is put: a row that comes twice shows."""

    def __init__(self, url: str) -> None:
        self._url = url

    def backend(self, folder: Path) -> Backend:
        values = {"url": self._url, "prefix": self._prefix(folder), "keys": ["id"], "count_by": ["id"]}
        return RedisBackend(RedisOptions.model_validate(values))

    def applied(self, folder: Path) -> Counter[int]:
        client: Any = redis.Redis.from_url(self._url)
        with closing(client):
            counts = client.hgetall(f"{{{self._prefix(folder)}}}:count:id")
            rows = len(client.keys(f"{{{self._prefix(folder)}}}:row:*"))
        found = Counter({int(id): int(count) for id, count in counts.items()})
        assert rows == len(found), f"the server holds {rows} rows, but {len(found)} are counted"
        return found

    def _prefix(self, folder: Path) -> str:
        return f"kit-{zlib.crc32(str(folder).encode()):08x}"


def targets() -> Mapping[str, ConformanceTarget]:
    url = os.environ.get("REDIS_URL")
    if not url:
        raise ConfigError("REDIS_URL is not set", next="REDIS_URL=redis://localhost:6379/0, an instance to play with")
    return {"redis": RedisTarget(url)}
