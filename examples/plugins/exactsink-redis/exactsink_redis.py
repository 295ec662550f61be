"""Redis as a sink of exactsink: a JSON text per key, and counts, put with the epoch's marker in one atomic step.

Rows wait in staged files until the decision. Then one MULTI/EXEC puts them with the marker, unless another driver was
first. So counts stay exact if a commit is repeated. In a cluster, the prefix in braces puts all keys into one slot.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import pyarrow as pa
import redis
from exactsink.contract import BackendOptions, BackendSpec, Fatal, Finding, Retryable, Traits, hookimpl
from exactsink.toolkit.roads import Applier, Marker, StagedBackend
from pydantic import Field, SecretStr
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError

__all__ = ["RedisBackend", "RedisOptions", "exactsink_backends"]

_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
"""The settings with which the server keeps every row that it has reported as committed."""


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            "redis",
            load="exactsink_redis:RedisBackend",
            install="pip install exactsink-redis",
            strategies={"staged": "rows wait in staged files until the decision, then one MULTI/EXEC puts them"},
            conformance="exactsink_redis_targets:targets",
        )
    ]


class RedisOptions(BackendOptions):
    """The sink's options in a job's file."""

    url: SecretStr
    """`redis://host:6379/0`, or `rediss://` for TLS; a password in it is never shown."""
    prefix: Annotated[str, Field(pattern=r"^[\w.-]{1,80}$")]
    """The prefix of all keys of the sink: `{prefix}:row:KEY`, `{prefix}:count:COLUMN`."""
    keys: Annotated[tuple[str, ...], Field(min_length=1)]
    """The columns that identify a row. One column: its text is the key; several: their JSON list."""
    count_by: tuple[str, ...] = ()
    """Columns to count by, each in a hash: how many rows have had each value."""
    timeout_seconds: float = 30
    """How long to wait for an answer."""


class RedisBackend(StagedBackend):
    """The part that the executors get: options, no connection. The journal keeps its strategy and target."""

    Options = RedisOptions
    options: RedisOptions

    @property
    def strategy(self) -> str:
        return "staged"

    @property
    def target(self) -> str:
        known = redis.ConnectionPool.from_url(self.options.url.get_secret_value()).connection_kwargs
        place = known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
        return f"redis:{place}/{known.get('db', 0)}/{self.options.prefix}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=True, needs_shared_staging=True, marks=True)

    def check_batch(self, batch: pa.RecordBatch) -> None:
        for key in self.options.keys:
            if batch.column(key).null_count:
                raise Fatal(
                    f"key column {key} is NULL", why="a row is found by its key", next=f"filter {key} IS NOT NULL"
                )

    def applier(self) -> Applier:
        return RedisApplier(self.options)


class RedisApplier(Applier):
    """The driver's side. The connection is made at the first call."""

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        url, seconds = options.url.get_secret_value(), options.timeout_seconds
        self._redis: Any = redis.Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds)

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        for column in (*self._options.keys, *self._options.count_by):
            if column not in schema.names:
                yield Finding("error", f"the rows have no column {column}", f"select {column} into this sink")
        with self._answering():
            if self._redis.info("replication")["role"] != "master":
                yield Finding("error", "the server is a replica", "give the url of the primary")
            try:
                found = {name: self._redis.config_get(name).get(name) for name in _DURABLE}
            except redis.ResponseError as error:  # a managed server hides it
                yield Finding(
                    "warning", f"the server refuses CONFIG GET: {error}", "check these settings: " + _settings(_DURABLE)
                )
                return
        if wrong := {name: said for name, said in _DURABLE.items() if found[name] != said}:
            message = f"{_settings({name: str(found[name]) for name in wrong})}: committed rows may vanish"
            yield Finding("error", message, f"{_settings(wrong)}, in redis.conf or by CONFIG SET")

    def open_epoch(self, schema: pa.Schema) -> None:
        """Redis makes keys by itself."""

    def last_applied(self, job: str, sink: str) -> Marker | None:
        with self._answering():
            return _loaded(self._redis.get(self._marker_key(job, sink)))

    def put_birth(self, birth: Marker) -> Marker:
        key = self._marker_key(birth.job, birth.sink)
        with self._answering():
            self._redis.set(key, _dumped(birth), nx=True)
            return _loaded(self._redis.get(key)) or birth

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        key = self._marker_key(marker.job, marker.sink)
        with self._answering(), closing(self._redis.pipeline(transaction=True)) as step:
            counts = [self._key("count", column) for column in self._options.count_by]
            step.watch(key, *counts)  # EXEC does nothing if another driver changes them from here on
            if not marker.must_apply(_loaded(step.get(key))):
                return False
            self._check_counts(step, counts)
            step.multi()
            self._put(step, batches)
            step.set(key, _dumped(marker))
            try:
                step.execute()
            except redis.WatchError as error:
                if not marker.must_apply(self.last_applied(marker.job, marker.sink)):
                    return False  # another process was first
                raise Retryable("the counts changed meanwhile", next="start the job again") from error
        return True

    def close(self) -> None:
        self._redis.close()

    def _put(self, step: Any, batches: Iterator[pa.RecordBatch]) -> None:
        """Queue every row. Only commands that can't fail one by one: EXEC rolls nothing back."""
        seen = {column: Counter[str]() for column in self._options.count_by}
        for batch in batches:
            for row in batch.to_pylist():
                key = [row[name] for name in self._options.keys]
                step.set(self._key("row", str(key[0]) if len(key) == 1 else _text(key)), _text(row))
                for column, values in seen.items():
                    values[str(row[column])] += 1
        for column, values in seen.items():
            for value, count in values.items():
                step.hincrby(self._key("count", column), value, count)

    def _check_counts(self, step: Any, counts: Iterable[str]) -> None:
        for key in counts:
            if step.type(key) not in (b"none", b"hash"):
                raise Fatal(f"{key} is not a hash", why="rows are counted there", next=f"DEL {key}, or another prefix")

    def _marker_key(self, job: str, sink: str) -> str:
        return self._key("marker", f"{job}.{sink}")

    def _key(self, kind: str, name: str) -> str:
        return f"{{{self._options.prefix}}}:{kind}:{name}"

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn the server's errors into Fatal or Retryable."""
        try:
            yield
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise Fatal("Redis refuses this user", why=str(error), next="correct url, or the user's ACL") from error
        except redis.RedisError as error:  # down, loading, out of memory, a full disk: later it may go through
            raise Retryable("Redis can't be used", why=str(error), next="start the job again") from error


def _text(value: object) -> str:
    return json.dumps(value, default=str)


def _dumped(marker: Marker) -> str:
    return _text([marker.job, marker.sink, marker.lineage, marker.epoch, marker.generation, marker.token])


def _loaded(text: bytes | None) -> Marker | None:
    return None if text is None else Marker(*json.loads(text))


def _settings(named: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items())
