"""Where a journal's entries are kept: one atomic put-if-absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

__all__ = ["JournalStore", "SeqTaken"]


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

    def newest(self) -> int:
        """Return the highest seq that stands, -1 when none does; never a stale answer."""
        ...

    def list(self) -> Sequence[int]:
        """List the seqs that stand, in any order, none of them stale or left out."""
        ...

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        """Return the bytes of those of these entries that stand, without reading them."""
        ...

    def delete(self, seqs: Iterable[int]) -> None:
        """Remove entries, in this order. Idempotent."""
        ...

    def close(self) -> None:
        """Close what was opened. Idempotent."""
        ...
