"""The names of entries in a folder: the first block is in the folder, each later block in a subfolder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from exactsink.toolkit.storage import ObjectPath, file_names, storage_errors

__all__ = ["BLOCK_ENTRIES", "Blocks", "block_name", "blocks_of", "entry_name", "seqs_of"]

BLOCK_ENTRIES = 200

Folder = TypeVar("Folder", Path, ObjectPath)

_ENTRY = re.compile(r"(?P<seq>\d{20})\.json")
_BLOCK = re.compile(r"\d{17}")


def entry_name(seq: int) -> str:
    """Return an entry's file name."""
    return f"{seq:020d}.json"


def block_name(seq: int, block_entries: int) -> str:
    """Return the folder of an entry's block, empty for the first block."""
    block = seq // block_entries
    return f"{block:017d}" if block else ""


def blocks_of(names: Iterable[str]) -> list[str]:
    """Return the names that are blocks."""
    return [name for name in names if _BLOCK.fullmatch(name)]


def seqs_of(names: Iterable[str]) -> list[int]:
    """Return the seqs of the names that are entries."""
    return [int(found["seq"]) for name in names if (found := _ENTRY.fullmatch(name))]


class Blocks(Generic[Folder]):
    """The part of an entry store that local folders and object stores share."""

    def __init__(self, folder: Folder, *, block_entries: int = BLOCK_ENTRIES) -> None:
        self._folder: Folder = folder
        self._block_entries = block_entries

    def newest(self) -> int:
        names = self._names(self._folder)
        blocks = (seqs_of(self._names(self._folder / name)) for name in sorted(blocks_of(names), reverse=True))
        inside = next(filter(None, blocks), [])
        return max(inside or seqs_of(names), default=-1)

    def close(self) -> None:
        """Do nothing: calls close their files, and all paths share the file system."""

    def _names(self, folder: Folder) -> Sequence[str]:
        with self._explained(), suppress(FileNotFoundError):
            return file_names(folder)
        return []

    def _explained(self) -> AbstractContextManager[None]:
        """Name the folder and the fix if a call is refused. Not for a write that may have taken effect all the same."""
        return storage_errors(self._folder, f"the journal in {self._folder} can't be read or written")

    def _name(self, seq: int) -> str:
        block = block_name(seq, self._block_entries)
        return f"{block}/{entry_name(seq)}" if block else entry_name(seq)

    def _path(self, seq: int) -> Folder:
        """Return where an entry is."""
        return self._folder / self._name(seq)
