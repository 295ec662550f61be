"""A journal's entries as objects, in a store that can refuse to create an object that exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.layout import Blocks, seqs_of
from exactsink.toolkit.storage import ObjectPath

__all__ = ["ObjectStore"]


class ObjectStore(Blocks[ObjectPath]):
    """Entries as objects, named like the files of a `LocalStore`, so that a start lists few names.

    A `put` is one request, which the store refuses if the name exists. After any other failure, it is unknown whether
    the put took effect. Nothing is cached.
    """

    def put(self, seq: int, data: bytes) -> None:
        if not self._path(seq).create(data):
            raise SeqTaken(seq)

    def read(self, seq: int) -> bytes | None:
        with self._explained():
            try:
                return self._path(seq).read_bytes()
            except FileNotFoundError:
                return None

    def list(self) -> Sequence[int]:
        return list(self._listed())

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        asked = set(seqs)
        return {seq: size for seq, size in self._listed().items() if seq in asked} if asked else {}

    def delete(self, seqs: Iterable[int]) -> None:
        with self._explained():
            self._folder.unlink_below(map(self._name, seqs))

    def _listed(self) -> Mapping[int, int]:
        """Return the size of every entry, with a request per thousand."""
        with self._explained():
            found = self._folder.listed(deep=True)
        return {seq: info.size for name, info in found.items() for seq in seqs_of([name.rpartition("/")[2]])}
