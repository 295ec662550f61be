"""A new object in a store, written like a file."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from exactsink.toolkit.storage.durable import HashedFile
from exactsink.toolkit.storage.object_errors import store_errors
from exactsink.toolkit.storage.objects import ObjectPath

__all__ = ["ObjectFile"]

_PART_BYTES = 16 * 2**20
"""The size of an upload's part. S3 takes 10,000 parts, and one or two of them are in memory."""


class ObjectFile(HashedFile):
    """A new object. Once it is sealed, it exists durably.

    Up to one part is sent by a single PUT. More is uploaded in parts, which nobody sees before the seal. If the file is
    closed without a seal, everything is dropped.
    """

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._path = path
        self._buffer = bytearray()
        self._upload: Any = None

    def put(self, view: memoryview) -> None:
        self._buffer += view
        if len(self._buffer) >= _PART_BYTES:
            with store_errors(self._path.url):
                self._send()

    def finish(self) -> None:
        if self._upload is None:
            self._path.replace(bytes(self._buffer))
        else:
            with store_errors(self._path.url):
                self._send()
                self._upload.close()
                self._upload.commit()
                self._upload = None

    def close(self) -> None:
        """Drop an object that was not sealed. Idempotent."""
        upload, self._upload = self._upload, None
        self._buffer = bytearray()
        if upload is not None:
            upload.closed = True  # otherwise garbage collection closes it, which would send its rows
            with suppress(OSError), store_errors(self._path.url):  # the sweep removes the rest
                upload.discard()
        super().close()

    def _send(self) -> None:
        """Hand the buffered bytes to fsspec's file, which sends them once it has a whole part."""
        if self._upload is None:
            self._upload = self._path.fs.open(self._path.url, "wb", block_size=_PART_BYTES, autocommit=False)
        self._upload.write(self._buffer)
        self._buffer = bytearray()
