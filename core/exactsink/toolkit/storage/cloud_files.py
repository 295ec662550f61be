"""fsspec's calls that a job needs, over a cloud's own library. Every call queries the store; nothing is cached.

The library's own retries are off. This module sends a request again, a few times, if the store throttles it or if its
answer is lost. So a create may find the object that its own earlier try made (see `ObjectPath.create`).
"""

from __future__ import annotations

import errno
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import IO, Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from requests import Session
from requests.adapters import HTTPAdapter

from exactsink.toolkit.storage.object_calls import ObjectInfo
from exactsink.toolkit.storage.object_errors import AWAY

__all__ = ["CONNECT_SECONDS", "LIBRARY_FAILED", "READ_SECONDS", "CloudFiles", "session"]

CONNECT_SECONDS, READ_SECONDS = 20, 120
LIBRARY_FAILED = 0
"""The status of a request that got no answer."""
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
_REFUSED = frozenset({401, 403})
_IN_MEMORY = 32 * 2**20
_CONNECTIONS = 32

_Answer = TypeVar("_Answer")


class CloudFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A cloud's buckets. A subclass implements the calls on one object. Any number of threads may use it."""

    root_marker = ""
    taken: frozenset[str] = frozenset()
    """The store's error codes for a create whose name was taken."""
    no_bucket: frozenset[str] = frozenset()

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._clients: dict[str, Any] = {}
        self._process = 0

    @abstractmethod
    def connect(self, bucket: str) -> Any:
        """Return a new client for a bucket."""

    @abstractmethod
    def said(self, error: Exception) -> tuple[int, str] | None:
        """Return status and code of an error of the library; None if the error is not the library's."""

    @abstractmethod
    def head(self, bucket: str, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        """Return an object's size and time, and its metadata. Raises FileNotFoundError."""

    @abstractmethod
    def read(self, bucket: str, key: str, start: int | None, end: int | None) -> bytes: ...

    @abstractmethod
    def write(self, bucket: str, key: str, data: bytes | IO[bytes], *, create: bool = False) -> str:
        """Write an object, and return the store's version of it.

        `create` raises FileExistsError if the name is taken.
        """

    @abstractmethod
    def remove(self, bucket: str, key: str) -> None:
        """Remove an object. Raises FileNotFoundError."""

    @abstractmethod
    def objects(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[tuple[str, ObjectInfo]]:
        """List the keys that begin with `prefix`.

        Without `deep`, all keys below a `/` count as one, which ends in `/`.
        """

    def client(self, bucket: str) -> Any:
        """Return this process's client for a bucket."""
        if self._process != os.getpid():  # a forked process can't use its parent's connections
            self._clients, self._process = {}, os.getpid()
        if bucket not in self._clients:
            self._clients[bucket] = self.call(lambda: self.connect(bucket))
        return self._clients[bucket]

    def call(self, request: Callable[[], _Answer]) -> _Answer:
        """Send a request, and repeat it a few times while the store throttles. Raises OSError."""
        pauses = iter(_PAUSES)
        while True:
            try:
                return request()
            except Exception as error:
                if (said := self.said(error)) is None:
                    raise
                pause = next(pauses, None) if said[0] in AWAY else None
                if pause is None:
                    raise self._as_os_error(error, *said) from error
            time.sleep(pause)

    def _as_os_error(self, error: Exception, status: int, code: str) -> OSError:
        text = str(error).partition("\n")[0]
        if code in self.no_bucket:
            raised = OSError(errno.ENODEV, f"the bucket does not exist: {text}")
        elif status in _REFUSED:
            raised = PermissionError(errno.EACCES, text)
        elif status == 404:
            raised = FileNotFoundError(errno.ENOENT, text)
        elif code in self.taken:
            raised = FileExistsError(errno.EEXIST, text)
        else:
            raised = OSError(errno.EDQUOT if "QuotaExceeded" in code else errno.EIO, f"{type(error).__name__}: {text}")
        # For `store_code` and `is_away`.
        raised.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
        return raised

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """Return bucket and key. fsspec would treat `?` and `#` as parts of a URL."""
        return path.partition("://")[2] if "://" in path else path

    def place(self, path: str) -> tuple[str, str]:
        """Split a URL into bucket and key."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        bucket, key = self.place(path)
        with suppress(FileNotFoundError):
            found, _metadata = self.head(bucket, key)
            return {"name": path, "size": found.size, "mtime": found.modified, "type": "file"}
        if next(self.objects(bucket, f"{key}/", deep=True), None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return {"name": path, "size": 0, "type": "directory"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self.read(*self.place(path), start, end)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.write(*self.place(path), value, create=mode == "create")

    def rm_file(self, path: str) -> None:
        self.remove(*self.place(path))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return _Reading(self, path, mode, block_size=options.get("block_size") or "default")
        return _Waiting(self, path)


class _Reading(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))


class _Waiting:
    """A new object, buffered until it is complete, on the local disk if it is large."""

    closed = False

    def __init__(self, fs: CloudFiles, path: str) -> None:
        self._fs = fs
        self._path = path
        self._data = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - lives until `commit` or `discard`

    def write(self, data: bytes) -> int:
        return self._data.write(data)

    def close(self) -> None:
        """Send the object; it takes no more bytes."""

    def commit(self) -> None:
        self._fs.write(*self._fs.place(self._path), self._data)
        self._data.close()

    def discard(self) -> None:
        self._data.close()


def session() -> Session:
    """Return a session with enough connections for the threads that write an epoch's files."""
    made = Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS))
    return made
