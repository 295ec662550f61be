"""A journal's entries as files in a local folder, and in blocks below it."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from exactsink.contract import FileMode, PreflightError
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.layout import BLOCK_ENTRIES, Blocks, blocks_of, seqs_of
from exactsink.toolkit.storage import NO_HARD_LINKS, make_folder, new_file, sync_folders

__all__ = ["LocalStore"]

_TEMP = re.compile(r"\.[0-9a-f]{32}\.tmp")


class LocalStore(Blocks[Path]):
    """Entries as files: write and fsync a temp file, link it (which fails if the name exists), fsync the folder.

    The first `block_entries` are in the folder itself. Each later block of as many is in a subfolder, so that a start
    lists few names, however long the journal is.
    A writer locks its temp file; the first put of each store removes temp files without a lock, because their writers
    are dead. An entry that this store has not made durable itself may be gone after a power cut, although it shows: its
    writer may have died before the sync, or its sync may have failed. So this store writes it again before it puts the
    next entry, or takes the entry for its own.
    """

    def __init__(self, folder: Path, *, block_entries: int = BLOCK_ENTRIES, file_mode: FileMode = "private") -> None:
        super().__init__(folder, block_entries=block_entries)
        self._file_mode = file_mode
        self._made: Path | None = None
        """The folder that certainly exists, with its name and its parents' names durable."""
        self._durable = -1
        """The last entry that this store has made durable."""
        self._unsure = -1
        """The entry that a put of this store may have linked, and failed to sync."""

    def put(self, seq: int, data: bytes) -> None:
        path = self._path(seq)
        with self._explained():
            if self._made != path.parent:
                for folder in dict.fromkeys((self._folder, path.parent)):
                    make_folder(folder, self._file_mode)
                if self._made is None:
                    self._remove_dead_temps()
                self._made = path.parent
            if seq > 0 and self._durable != seq - 1:
                self._write_again(seq - 1)
            self._unsure = seq
        with self._sealed(data) as temp:
            try:
                os.link(temp, path)
            except FileExistsError:
                raise SeqTaken(seq) from None
            except OSError as error:
                raise _no_links(self._folder) if error.errno in NO_HARD_LINKS else error from None
        sync_folders([path.parent])
        self._durable, self._unsure = seq, -1

    def read(self, seq: int) -> bytes | None:
        with self._explained():
            if seq == self._unsure:
                self._write_again(seq)
            try:
                return self._path(seq).read_bytes()
            except FileNotFoundError:
                return None

    def _write_again(self, seq: int) -> None:
        """Make an existing entry durable as a new file, because nobody knows whether the old file is."""
        path = self._path(seq)
        with suppress(FileNotFoundError):
            with self._sealed(path.read_bytes()) as temp:
                temp.replace(path)
            sync_folders([path.parent])
            self._durable = seq
        if seq == self._unsure:
            self._unsure = -1

    @contextmanager
    def _sealed(self, data: bytes) -> Iterator[Path]:
        """Write and sync a temp file. It is removed at the end, unless the block has renamed it."""
        temp, file = self._locked_temp()
        try:
            with file:  # closing it releases its lock, so only after the entry has its name
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                yield temp
        finally:
            temp.unlink(missing_ok=True)

    def list(self) -> Sequence[int]:
        names = self._names(self._folder)
        blocks = (self._names(self._folder / name) for name in blocks_of(names))
        return [seq for part in (names, *blocks) for seq in seqs_of(part)]

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        found = {}
        with self._explained():
            for seq in seqs:
                with suppress(FileNotFoundError):
                    found[seq] = self._path(seq).stat().st_size
        return found

    def delete(self, seqs: Iterable[int]) -> None:
        with self._explained():
            for seq in seqs:
                self._path(seq).unlink(missing_ok=True)

    def _locked_temp(self) -> tuple[Path, BinaryIO]:
        """Make a temp file that no other store removes while it is open here."""
        while True:
            temp = self._folder / f".{uuid.uuid4().hex}.tmp"
            file = new_file(temp)
            with suppress(OSError):  # without locks, no process holds one, and none removes files
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return temp, file
            file.close()  # removed as a dead writer's, after its creation and before its lock

    def _remove_dead_temps(self) -> None:
        """Remove temp files of dead writers: a lock ends with its process. Files that can't be removed stay."""
        for name in os.listdir(self._folder):
            if _TEMP.fullmatch(name):
                with suppress(OSError), open(self._folder / name, "rb+") as file:  # gone, locked, or another user's
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (self._folder / name).unlink()


def _no_links(folder: Path) -> PreflightError:
    return PreflightError(
        f"the file system of {folder} has no hard links",
        why="a journal needs a create that fails when the name exists, and never shows half a file",
        next="put the checkpoint, and so the journal beside it, on another file system",
    )
