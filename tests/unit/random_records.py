"""Random rows of every kind that a record can be made of, and where Java's client puts them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_LENGTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 100, 130, 8191, 8192]
_KINDS = ("mixed", "same", "null", "none")
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True)
class Row:
    """A row; a partition, a time (ms) or headers of None are not said."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None = None
    time: int | None = None
    partition: int | None = None


def random_rows(rng: random.Random, count: int, partitions: int, *, large: int = 0) -> list[Row]:
    """Return rows of one batch, with the same columns in each. `large` is the size of a few values."""
    kind, extras = rng.choice(_KINDS), {name for name in ("headers", "time", "partition") if rng.random() < 0.3}

    def some() -> bytes:
        return rng.randbytes(rng.choice(_LENGTHS[: 14 if rng.random() < 0.98 else 16]))

    def row() -> Row:
        key = {"same": b"%08d" % rng.randrange(10**8), "mixed": None if rng.random() < 0.2 else some()}.get(kind)
        value = None if rng.random() < 0.1 else rng.randbytes(large) if large and rng.random() < 0.01 else some()
        headers = [(f"h{n}", rng.choice([None, b"", some()])) for n in range(rng.randrange(4))]
        return Row(
            key,
            value,
            headers if "headers" in extras and rng.random() < 0.8 else None,
            rng.randrange(1, 10**12) if "time" in extras and rng.random() < 0.9 else None,
            rng.randrange(partitions) if "partition" in extras and rng.random() < 0.8 else None,
        )

    return [row() for _ in range(count)]


def to_batch(rng: random.Random, rows: list[Row]) -> pa.RecordBatch:
    """Return an Arrow batch of them, which may begin anywhere in its memory."""
    kind: Any = rng.choice([pa.binary(), pa.large_binary()])
    columns = {"value": pa.array([row.value for row in rows], kind)}
    if any(row.key is not None for row in rows) or rng.random() < 0.5:
        columns["key"] = pa.array([row.key for row in rows], kind)
    if any(row.headers is not None for row in rows):
        named = [row.headers and [{"key": k, "value": v} for k, v in row.headers] for row in rows]
        columns["headers"] = pa.array(named, _HEADERS)
    if any(row.time is not None for row in rows):
        columns["timestamp"] = pa.array([row.time for row in rows], pa.timestamp("ms", "UTC"))
    if any(row.partition is not None for row in rows):
        columns["partition"] = pa.array([row.partition for row in rows], pa.int32())
    batch = pa.record_batch(columns)
    return pa.concat_batches([batch.slice(0, 1), batch]).slice(1) if rng.random() < 0.5 else batch


def java_murmur2(data: bytes) -> int:
    """Hash as Java's Kafka client does, without the sign."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    for (k,) in struct.iter_unpack("<I", data[: len(data) // 4 * 4]):
        k = k * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[len(data) // 4 * 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF
