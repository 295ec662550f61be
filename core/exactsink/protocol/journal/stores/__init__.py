"""The stores of a journal's entries. Each has one atomic put-if-absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

__all__ = ["JournalStore", "SeqTaken"]


class SeqTaken(Exception):
    """An entry with this seq exists already, perhaps the same one."""


class JournalStore(Protocol):
    """Keep numbered entries. After any exception that is not named here, it is unknown whether the call took effect."""

    def put(self, seq: int, data: bytes) -> None:
        """Write an entry: durable when it returns, and never partly written. Raises SeqTaken if the seq is taken."""
        ...

    def read(self, seq: int) -> bytes | None:
        """Read an entry, None if it does not exist."""
        ...

    def newest(self) -> int:
        """Return the highest seq, -1 if there is none. The answer is never stale."""
        ...

    def list(self) -> Sequence[int]:
        """List all seqs, in any order. The answer is complete, and never stale."""
        ...

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        """Return the size in bytes of each of these entries that exists, without reading them."""
        ...

    def delete(self, seqs: Iterable[int]) -> None:
        """Remove entries, in this order. Idempotent."""
        ...

    def close(self) -> None:
        """Close the resources that were opened. Idempotent."""
        ...
