"""Count a topic's records in the broker's files, by the headers of its batches. A million takes milliseconds."""

from __future__ import annotations

import struct
from pathlib import Path

__all__ = ["count_records"]

_HEAD = struct.Struct(">qiibiHi qq q h i i".replace(" ", ""))  # a batch's header, format 2
_LENGTH, _ATTRIBUTES, _COUNT = 1, 5, 12
_BEFORE = 12  # bytes that the length does not count
_CONTROL = 0x20  # a batch of markers: commit or abort


def count_records(data: Path, topic: str) -> int:
    """Count the records in a topic's segments below the broker's data folder, without the markers."""
    return sum(_count(segment) for segment in data.glob(f"{topic}-*/*.log"))


def _count(segment: Path) -> int:
    end, place, records = segment.stat().st_size, 0, 0
    with segment.open("rb") as file:
        while place + _HEAD.size <= end:
            file.seek(place)
            fields = _HEAD.unpack(file.read(_HEAD.size))
            records += 0 if fields[_ATTRIBUTES] & _CONTROL else fields[_COUNT]
            place += _BEFORE + fields[_LENGTH]
    if place != end:
        raise RuntimeError(f"{segment.name} ends within a batch")
    return records
