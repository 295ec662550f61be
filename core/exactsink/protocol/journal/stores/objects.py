"""A journal's entries as objects in a store that can refuse to create one where one stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from exactsink.contract import ObjectPath, storage_errors
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.layout import BLOCK_ENTRIES, block_name, blocks_of, entry_name, seqs_of

__all__ = ["ObjectStore"]


class ObjectStore:
    """Entries as objects, named as a `LocalStore` names its files, so that a start lists few names.

    A `put` is one request, which the store refuses where the name exists; whatever else goes wrong in it leaves open
    whether it took effect. Nothing that was read or listed is kept.
    """

    def __init__(self, folder: ObjectPath, *, block_entries: int = BLOCK_ENTRIES) -> None:
        self._folder = folder
        self._block_entries = block_entries

    def put(self, seq: int, data: bytes) -> None:
        if not self._path(seq).create(data):
            raise SeqTaken(seq)

    def read(self, seq: int) -> bytes | None:
        with self._explained():
            try:
                return self._path(seq).read_bytes()
            except FileNotFoundError:
                return None

    def newest(self) -> int:
        names = self._names(self._folder)
        for block in sorted(blocks_of(names), reverse=True):
            if inside := seqs_of(self._names(self._folder / block)):
                return max(inside)
        return max(seqs_of(names), default=-1)

    def list(self) -> Sequence[int]:
        return list(self._listed())

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        asked = set(seqs)
        return {seq: size for seq, size in self._listed().items() if seq in asked} if asked else {}

    def delete(self, seqs: Iterable[int]) -> None:
        with self._explained():
            self._folder.unlink_below(map(self._name, seqs))

    def close(self) -> None:
        """Hold nothing: connections are the file system's, which all paths share."""

    def _listed(self) -> Mapping[int, int]:
        """Return the size of every entry, a thousand in a request."""
        with self._explained():
            found = self._folder.listed(deep=True)
        return {seq: info.size for name, info in found.items() for seq in seqs_of([name.rpartition("/")[2]])}

    def _names(self, folder: ObjectPath) -> Sequence[str]:
        with self._explained():
            return folder.names()

    def _explained(self) -> AbstractContextManager[None]:
        return storage_errors(self._folder, f"the journal in {self._folder} can't be read or written")

    def _name(self, seq: int) -> str:
        block = block_name(seq, self._block_entries)
        return f"{block}/{entry_name(seq)}" if block else entry_name(seq)

    def _path(self, seq: int) -> ObjectPath:
        return self._folder / self._name(seq)
