"""A participant's files as multipart uploads: they are sent part by part while the next rows are made."""

from __future__ import annotations

import json
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from tempfile import SpooledTemporaryFile

from exactsink.contract import Txn
from exactsink.toolkit.storage import HashedFile
from exactsink_files.stores import Store, in_parallel
from exactsink_files.uploads import identity, record_name
from exactsink_files.votes import Part, VotedFile, VotedFiles
from exactsink_files.writer import HiddenFiles, too_long

__all__ = ["UploadFile", "UploadFiles", "part_bytes"]

_PART_BYTES = 8 * 2**20  # S3 needs 5 MiB or more, except in the last part
_PARTS_A_SIZE = 1000  # of the 10,000 that S3 accepts: files of up to 430 GB
_SENDERS = 4
_MOST_ON_THE_WAY = 48 * 2**20
_MOST_WAITING = 48 * 2**20
"""A task's most bytes in flight, and in memory until parts are full. More bytes wait on the local disk."""


def part_bytes(number: int) -> int:
    """Return the size of a part in bytes: each thousand of a file's parts are larger than the thousand before."""
    return _PART_BYTES * (1 + (number - 1) // _PARTS_A_SIZE)


class UploadFiles(HiddenFiles["UploadFile"]):
    """Uploads to the final keys. A list of them is in the store before the first part, and complete before the vote.

    After an error there is nothing to commit. When a sweep aborts them, the store accepts no more parts, and the writer
    raises Retryable.
    """

    def __init__(self, txn: Txn, store: Store) -> None:
        self.root = store.root.url
        self._txn = txn
        self._store = store
        self.sealed = store.sealed
        self._record = store.key(f"_exactsink/{record_name(txn.id)}")
        self._pool = ThreadPoolExecutor(_SENDERS, "exactsink-upload")
        self._sending: deque[tuple[Future[Part], int]] = deque()
        self._files: list[tuple[UploadFile, int]] = []
        self._waiting = 0
        self._lock = threading.Lock()
        self._begun: list[tuple[str, str]] = []
        self._noted = 0

    def make(self) -> None:
        """Do nothing: a store needs no folder."""

    def open(self, final: str) -> UploadFile:
        key = self._store.key(final)
        if len(key.encode()) > self._store.longest_key:
            raise too_long(self._txn.sink, final, "the store")
        return UploadFile(self, final, key, self._pool.submit(self._begin, key, final))

    def seal(self, out: UploadFile, rows: int) -> None:
        out.seal()
        self._files.append((out, rows))

    def vote(self) -> VotedFiles:
        """Wait for all parts, and list all uploads in the store."""
        files = tuple(file.voted(rows) for file, rows in self._files)
        with self._lock:
            self._note()
        self._pool.shutdown()
        return VotedFiles(self.root, f"_exactsink/{record_name(self._txn.id)}", files)

    def drop(self) -> None:
        self._pool.shutdown(cancel_futures=True)  # wait for parts in flight, which may outlive an abort
        in_parallel(lambda begun: self._store.abort(*begun), self._begun)
        if self._noted:
            self._store.delete([self._record])

    def room_for(self, size: int) -> bool:
        """Add to the count of waiting bytes (negative: fewer wait now); return whether memory has room for all."""
        self._waiting += size
        return self._waiting <= _MOST_WAITING

    def send(self, upload: Future[str], key: str, number: int, data: bytes) -> Future[Part]:
        """Send a part once the upload is begun. Raises OSError if an earlier part could not be sent."""
        while self._sending and sum(size for _, size in self._sending) + len(data) > _MOST_ON_THE_WAY:
            self._sending.popleft()[0].result()
        sent = self._pool.submit(lambda: self._store.put_part(key, upload.result(), number, data))
        self._sending.append((sent, len(data)))
        return sent

    def _begin(self, key: str, final: str) -> str:
        """Begin an upload. The list in the store is written for the first, then each time that the number doubles.

        (For a store that lists no uploads itself, it is written each time.)
        """
        upload = self._store.create(key, identity(self._txn.id, final))
        with self._lock:
            self._begun.append((key, upload))
            if len(self._begun) >= 2 * self._noted or self._store.notes == "all":
                self._note()
        return upload

    def _note(self) -> None:
        if len(self._begun) > self._noted and self._store.notes != "none":
            self._store.put(self._record, json.dumps(self._begun).encode())
            self._noted = len(self._begun)


class UploadFile(HashedFile):
    """One file, cut into parts."""

    def __init__(self, files: UploadFiles, final: str, key: str, upload: Future[str]) -> None:
        super().__init__()
        self._final = final
        self._files = files
        self._upload = upload
        self._key = key
        self._waiting = SpooledTemporaryFile()  # noqa: SIM115 - lives until its part is full
        self._in_memory = 0
        self._on_disk = False
        self._parts: list[Future[Part]] = []

    def put(self, view: memoryview) -> None:
        while view:
            room = part_bytes(len(self._parts) + 1) - self._waiting.tell()
            self._keep(view[:room])
            if len(view) >= room:
                self._send()
            view = view[room:]

    def finish(self) -> None:
        """Send the last part: a file has at least one part."""
        if self._waiting.tell() or not self._parts:
            self._send()

    def voted(self, rows: int) -> VotedFile:
        """Wait until the whole file is sent; return its part of the vote."""
        parts = self._files.sealed(self._key, self._upload.result(), [part.result() for part in self._parts])
        return VotedFile(self._upload.result(), self._final, self._size, self._hash.hexdigest(), rows, parts)

    def close(self) -> None:
        self._forget()
        super().close()

    def _send(self) -> None:
        self._waiting.seek(0)
        data = self._waiting.read()
        self._forget()
        self._parts.append(self._files.send(self._upload, self._key, len(self._parts) + 1, data))
        self._waiting = SpooledTemporaryFile()  # noqa: SIM115

    def _keep(self, chunk: memoryview) -> None:
        self._waiting.write(chunk)
        if self._on_disk:
            return
        self._in_memory += len(chunk)
        if not self._files.room_for(len(chunk)):
            self._waiting.rollover()
            self._files.room_for(-self._in_memory)
            self._in_memory, self._on_disk = 0, True

    def _forget(self) -> None:
        """Drop the waiting bytes."""
        self._files.room_for(-self._in_memory)
        self._in_memory, self._on_disk = 0, False
        self._waiting.close()
