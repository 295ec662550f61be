"""How entries are named in a folder: the first block lies in it, each later one in a folder below it."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["BLOCK_ENTRIES", "block_name", "blocks_of", "entry_name", "seqs_of"]

BLOCK_ENTRIES = 200

_ENTRY = re.compile(r"(?P<seq>\d{20})\.json")
_BLOCK = re.compile(r"\d{17}")


def entry_name(seq: int) -> str:
    """Return an entry's own name."""
    return f"{seq:020d}.json"


def block_name(seq: int, block_entries: int) -> str:
    """Return the folder of an entry's block, empty for the first."""
    block = seq // block_entries
    return f"{block:017d}" if block else ""


def blocks_of(names: Iterable[str]) -> list[str]:
    """Return those of these names that are blocks."""
    return [name for name in names if _BLOCK.fullmatch(name)]


def seqs_of(names: Iterable[str]) -> list[int]:
    """Return the seqs of those of these names that are entries."""
    return [int(found["seq"]) for name in names if (found := _ENTRY.fullmatch(name))]
