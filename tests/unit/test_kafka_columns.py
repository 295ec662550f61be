"""Record batches made of Arrow columns, read back by kafka-python's reader; defects planted into them are seen."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.record import MemoryRecords
from tests.unit.random_records import Row, java_murmur2, random_rows, to_batch

from exactsink_kafka import columns
from exactsink_kafka.columns import HEAD_BYTES, Codec, Spread, batch_of, partitions_of, runs_of
from exactsink_kafka.columns_client import _chunks
from exactsink_kafka.records import Records

_NOW = 1_700_000_000_000


def amiss(rng: random.Random, codec: str) -> str:
    """Make batches of random rows, read them, and say what is not as it has to be."""
    count, limit = rng.choice([1, 2, 3, 16, 300]), rng.choice([500, 20_000, 262_144])
    rows = random_rows(rng, rng.choice([1, 2, 63, 64, 65, 700, 3000]), count)
    left: dict[int, list[Row]] = {number: [] for number in range(-1, count)}  # -1: without a key, anywhere
    for row in rows:
        by_key = -1 if row.key is None else java_murmur2(row.key) % count
        left[by_key if row.partition is None else row.partition].append(row)
    loose = Counter(map(repr, left.pop(-1)))
    sequences, spread = dict.fromkeys(left, 0), Spread(range(count), limit, rng.randrange(count))
    for chunk, named in _chunks([Records(to_batch(rng, rows), "t", "test")]):
        for run in runs_of(chunk, partitions_of(chunk, named, count, spread), limit - HEAD_BYTES, _NOW):
            data = b"".join(batch_of(run, Codec(codec), (77, 3), sequences[run.partition]))
            if run.rows > 1 and codec == "none" and len(data) > limit:
                return f"{len(data)} bytes of {run.rows} rows in a batch of {limit}"
            if said := misread(data, run.rows, sequences[run.partition], left[run.partition], loose):
                return f"partition {run.partition}: {said}"
            sequences[run.partition] += run.rows
    return "rows are lost" if any(left.values()) or loose.total() else ""


def misread(data: bytes, rows: int, sequence: int, left: list[Row], loose: Counter[str]) -> str:
    """Read a batch, and take its rows from those that are left."""
    [batch] = MemoryRecords(data)
    head = (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional)
    if not batch.validate_crc() or head != (77, 3, sequence, True):
        return f"a batch's head: {head}"
    read = list(batch)
    if [one.offset for one in read] != list(range(rows)) or batch.last_offset != rows - 1:
        return "offsets"
    for one in read:
        wanted = left[0] if left else None
        if wanted and same(one, wanted):
            left.pop(0)
            continue
        time = None if one.timestamp >= _NOW else one.timestamp
        alike = [repr(Row(one.key, one.value, headers, time)) for headers in shown(one)]
        found = next((row for row in alike if loose[row]), None)
        if found is None:
            return f"{one} is not {wanted}"
        loose[found] -= 1
    return "the last time" if max(one.timestamp for one in read) > batch.max_timestamp else ""


def shown(one: Any) -> list[Any]:
    """Return what a record's headers may have been made of."""
    return [[(key, value) for key, value in one.headers], *([None] if not one.headers else [])]


def same(one: Any, row: Row) -> bool:
    time = one.timestamp >= _NOW if row.time is None else one.timestamp == row.time
    return (one.key, one.value, shown(one)[0]) == (row.key, row.value, row.headers or []) and time


@pytest.mark.timeout(900)
@pytest.mark.parametrize("plays", [60, pytest.param(1900, marks=pytest.mark.proof)])  # 1,000,000 rows
def test_random_rows_come_back_as_they_were_in_the_partitions_of_java_s_client(plays: int) -> None:
    for seed in range(plays):
        assert amiss(random.Random(seed), ("none", "gzip", "none")[seed % 3]) == "", f"seed {seed}"


def _swapped(fields: list[pa.Array], order: Any) -> Any:
    if len(fields) > 3:
        fields[1], fields[3] = fields[3], fields[1]
    return _JOINED(fields, order)


_JOINED, _BOUNDS, _MURMUR = columns._joined, columns._bounds, columns.murmur2
DEFECTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "keys and values change places": ("_joined", _swapped),
    "a delta is wrong": ("_zigzag", lambda n: (n << 1) ^ (n >> 63) if n[0] or len(n) < 60 else (n << 1) + 2),
    "a hash is wrong": ("murmur2", lambda keys: _MURMUR(keys) + np.uint32(1)),
    "the checksum begins elsewhere": ("crc32c", lambda data, seed=1: columns_crc(data, seed)),
    "a partition is another's": ("_bounds", lambda *a: [(p ^ 1, at) for p, at in _BOUNDS(*a)]),
    "rows of a batch are lost": ("_bounds", lambda *a: _BOUNDS(*a)[:-1] or _BOUNDS(*a)),
}
columns_crc = columns.crc32c


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    def seen(seed: int) -> bool:
        try:
            return amiss(random.Random(seed), "none") != ""
        except Exception:
            return True

    monkeypatch.setattr(columns, *DEFECTS[defect])
    assert any(seen(seed) for seed in range(30))


def test_rows_without_a_key_fill_a_batch_of_one_partition_after_the_other() -> None:
    spread = Spread([4, 6, 9], 100, 1)
    assert spread(np.full(7, 40)).tolist() == [6, 6, 6, 9, 9, 4, 4]
    assert spread(np.full(1, 40)).tolist() == [4]


def test_a_chunk_is_a_few_megabytes_or_one_row_and_what_is_empty_makes_none() -> None:
    batch = pa.record_batch({"value": pa.array([b"v" * 5_000_000, b"w" * 2_000_000, b"", None, b"x" * 9_000_000])})
    made = [chunk.sizes.tolist() for chunk, _ in _chunks([Records(batch, "t", "test")])]
    assert made == [[5_000_000, 2_000_000, 0, 0], [9_000_000]]
    assert list(_chunks([])) == []
