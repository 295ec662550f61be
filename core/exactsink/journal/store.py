"""Where a journal's entries are kept: one atomic put-if-absent, on a local file system."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from exactsink.durable import NO_HARD_LINKS, make_folder, sync_folders
from exactsink.errors import PreflightError

__all__ = ["JournalStore", "LocalStore", "SeqTaken"]

_ENTRY = re.compile(r"(?P<seq>\d{20})\.json")


class SeqTaken(Exception):
    """An entry with this seq stands already, perhaps the very same one."""


class JournalStore(Protocol):
    """Keep numbered entries. Any other exception than those named leaves open whether the call took effect."""

    def put(self, seq: int, data: bytes) -> None:
        """Write an entry, durable when it returns, never half written. Raises SeqTaken when the seq is owned."""
        ...

    def read(self, seq: int) -> bytes | None:
        """Read an entry; None when it is absent."""
        ...

    def list(self) -> Sequence[int]:
        """List the seqs that stand, in any order, none of them stale or left out."""
        ...

    def delete(self, seqs: Iterable[int]) -> None:
        """Remove entries. Idempotent."""
        ...


class LocalStore:
    """Entries as files in one folder: temp file, fsync, link (which fails where the name exists), fsync the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = False
        self._unsynced = False

    def put(self, seq: int, data: bytes) -> None:
        if not self._made:
            make_folder(self._folder)
            self._made = True
        temp = self._folder / f".{uuid.uuid4().hex}.tmp"
        try:
            with open(temp, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._link(temp, seq)
        finally:
            temp.unlink(missing_ok=True)
            # Also for an entry that stands already: it may be ours, linked by a call whose sync never ran.
            self._sync()

    def read(self, seq: int) -> bytes | None:
        if self._unsynced:  # a put of mine may have linked what is read here, and then failed to sync its name
            self._sync()
        try:
            return self._path(seq).read_bytes()
        except FileNotFoundError:
            return None

    def list(self) -> Sequence[int]:
        if not self._folder.is_dir():
            return []
        return [int(found["seq"]) for name in os.listdir(self._folder) if (found := _ENTRY.fullmatch(name))]

    def delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._path(seq).unlink(missing_ok=True)

    def _link(self, temp: Path, seq: int) -> None:
        self._unsynced = True
        try:
            os.link(temp, self._path(seq))
        except FileExistsError:
            raise SeqTaken(seq) from None
        except OSError as error:
            if error.errno in NO_HARD_LINKS:
                raise _no_atomic_create(self._folder) from error
            raise

    def _sync(self) -> None:
        sync_folders([self._folder])
        self._unsynced = False

    def _path(self, seq: int) -> Path:
        return self._folder / f"{seq:020d}.json"


def _no_atomic_create(folder: Path) -> PreflightError:
    return PreflightError(
        f"the file system of {folder} has no hard links",
        why="a journal needs a create that fails when the name exists, and never shows half a file",
        next="put the checkpoint, and so the journal beside it, on another file system",
    )
