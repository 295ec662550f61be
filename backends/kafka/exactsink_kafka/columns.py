"""Record batches (format v2) made of whole Arrow columns, by kernels of numpy and pyarrow: no Python step per row.

`partitions_of` says where rows go, `runs_of` encodes a chunk of rows as runs of one partition each, and `batch_of`
makes a run the record batch that a Produce request carries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

__all__ = ["CODECS", "HEAD_BYTES", "Codec", "Columns", "Run", "Spread", "batch_of", "partitions_of", "runs_of"]

HEAD_BYTES = 61
"""The length of a record batch's header."""

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The codes of compression in a batch's attributes, by librdkafka's names."""

_Ints: TypeAlias = npt.NDArray[np.int64]
_Pieces: TypeAlias = Sequence["bytes | memoryview"]

_MOST_OVERHEAD = 8  # of a record: its length (5) and its offset within its batch (3)
_FEW_TURNS = 4  # per partition: if the partition changes more often from row to row, rows are sorted by it
_TRANSACTIONAL = 0x10
_HEAD = struct.Struct(">hiqqqhii")  # attributes, last offset, first and last time, producer, epoch, sequence, rows
_JOIN = pc.JoinOptions(null_handling="replace", null_replacement="")
_SEED, _FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)
_SNAPPY_BLOCK, _LZ4_BLOCK = 32 << 10, 256 << 10
_LZ4_FRAME = b"\x04\x22\x4d\x18\x60\x50\xfb"  # magic; independent blocks; of 256 KB; the header's checksum


@dataclass(frozen=True)
class Columns:
    """A chunk of rows. `times`: milliseconds since 1970. `headers`: each row's count of headers, then its headers."""

    values: pa.Array
    keys: pa.Array | None = None
    times: _Ints | None = None
    headers: pa.Array | None = None

    @cached_property
    def sizes(self) -> _Ints:
        """Return the bytes of each row's key, value and headers."""
        sizes = np.maximum(_lengths(self.values), 0)
        for column in (self.keys, self.headers):
            if column is not None:
                sizes += np.maximum(_lengths(column), 0)
        return sizes


@dataclass(frozen=True, slots=True)
class Run:
    """Encoded records of one partition, in the order of their rows; `largest` is the size of the largest row."""

    partition: int
    rows: int
    pieces: _Pieces
    first_time: int
    last_time: int
    largest: int


class Codec:
    """Compresses records as Kafka's clients do. Raises KeyError for a wrong name, ArrowException for a wrong level."""

    def __init__(self, name: str, level: int | None = None) -> None:
        self.code = CODECS[name]
        self._name = name
        kind = "lz4_raw" if name == "lz4" else name
        leveled = level is not None and level >= 0 and name in ("gzip", "zstd")
        self._codec = None if name == "none" else pa.Codec(kind, compression_level=level if leveled else None)

    def compressed(self, pieces: _Pieces) -> _Pieces:
        if self._codec is None:
            return pieces
        whole = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._name == "snappy":
            return [b"".join(self._snappy(whole))]
        if self._name == "lz4":
            return [b"".join(self._lz4(whole))]
        return [self._compress(whole)]

    def _compress(self, data: memoryview) -> bytes:
        assert self._codec is not None
        compressed: bytes = self._codec.compress(pa.py_buffer(data), asbytes=True)  # a Buffer's length is stale (26.0)
        return compressed

    def _snappy(self, data: memoryview) -> Iterable[bytes]:
        """Frame blocks with their lengths, as snappy-java does, because every consumer reads that."""
        yield b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
        for at in range(0, len(data), _SNAPPY_BLOCK):
            block = self._compress(data[at : at + _SNAPPY_BLOCK])
            yield struct.pack(">i", len(block))
            yield block

    def _lz4(self, data: memoryview) -> Iterable[bytes | memoryview]:
        """Frame independent blocks: Java's client reads no others, and Arrow's own frames link their blocks."""
        yield _LZ4_FRAME
        for at in range(0, len(data), _LZ4_BLOCK):
            piece = data[at : at + _LZ4_BLOCK]
            block = self._compress(piece)
            small = len(block) < len(piece)
            yield struct.pack("<I", len(block) if small else len(piece) | 0x80000000)
            yield block if small else piece
        yield b"\0\0\0\0"


class Spread:
    """Assigns rows without a key to partitions: a batch's bytes to each partition in turn, as Java's client does."""

    def __init__(self, partitions: Sequence[int], batch_bytes: int, start: int) -> None:
        self.partitions = np.array(partitions)
        self._batch_bytes = batch_bytes
        self._at = start * batch_bytes

    def __call__(self, sizes: _Ints) -> npt.NDArray[Any]:
        ends = np.cumsum(sizes) + self._at
        self._at = int(ends[-1])
        turns = (ends - sizes) // self._batch_bytes % len(self.partitions)
        return np.take(self.partitions, turns)


def partitions_of(
    columns: Columns, given: npt.NDArray[Any] | None, count: int, spread: Callable[[_Ints], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Return each row's partition: the row's own number, else by its key (Java's murmur2), else by `spread`.

    A negative number in `given` means that the row has none.
    """
    keys, rows = columns.keys, len(columns.values)
    if keys is None:
        part, free = np.zeros(rows, _kind(count)), np.ones(rows, bool)
    else:
        part = ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(_kind(count))
        free = _nulls(keys) if keys.null_count else np.zeros(rows, bool)
    if given is not None:
        named = given >= 0
        part[named] = given[named]
        free &= ~named
    if free.any():
        part[free] = spread(columns.sizes[free] + _MOST_OVERHEAD)
    return part


def murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Hash each key as Java's client does. NULL counts as empty."""
    at, data = _offsets(keys)
    start, length = at[:-1].astype(np.int64), np.diff(at).astype(np.int64)
    hashed = _SEED ^ length.astype(np.uint32)
    if length.any():
        raw = np.frombuffer(data, np.uint8)
        loads = np.ndarray((max(len(raw) - 3, 0),), "<u4", data, strides=(1,))  # four bytes from each position on
        words = length >> 2
        for word in range(int(words.max())):
            rows = np.flatnonzero(words > word)
            k = loads[start[rows] + 4 * word] * _FACTOR
            k ^= k >> np.uint32(24)
            hashed[rows] = (hashed[rows] * _FACTOR) ^ (k * _FACTOR)
        rest, tail = length & 3, start + (length & ~3)
        for place in (2, 1, 0):
            rows = np.flatnonzero(rest > place)
            hashed[rows] ^= raw[tail[rows] + place].astype(np.uint32) << np.uint32(8 * place)
        hashed[rest > 0] *= _FACTOR
    hashed ^= hashed >> np.uint32(13)
    hashed *= _FACTOR
    hashed ^= hashed >> np.uint32(15)
    return hashed


def runs_of(columns: Columns, part: npt.NDArray[Any], most_bytes: int, now: int) -> list[Run]:
    """Encode rows as runs. A run holds rows of one partition in their order: at most `most_bytes`, or a single row.

    `now` (milliseconds since 1970) is the time of rows without one.
    """
    order, groups = _grouped(part)
    tail = [] if columns.headers is None else [columns.headers]
    key_lengths = np.full(len(part), -1) if columns.keys is None else _lengths(columns.keys)
    value_lengths = _lengths(columns.values)
    base = now if columns.times is None else int(columns.times.min())
    stamps = np.zeros(len(part), np.int64) if columns.times is None else columns.times - base
    head = [_zigzag(stamps), _zigzag(key_lengths), _zigzag(value_lengths)]
    sizes = columns.sizes
    bodies = sizes + sum(map(_varint_sizes, head)) + 1 + (columns.headers is None)
    bounds = _bounds(bodies if order is None else bodies[order], groups, most_bytes)
    edges = np.array([*(start for _, start in bounds), len(part)], np.int64)
    rank = np.arange(len(part)) - np.repeat(edges[:-1], np.diff(edges))
    if order is not None:
        unordered = np.empty_like(rank)
        unordered[order] = rank
        rank = unordered
    offsets = _zigzag(rank)
    front = _Fields(len(part))
    if not tail:
        front.byte(0)  # the row before has 0 headers: here, it is one field less to join
    front.varint(_zigzag(bodies + _varint_sizes(offsets))).byte(0).varint(head[0]).varint(offsets).varint(head[1])
    if columns.keys is None:
        fields = [front.varint(head[2]).array(), columns.values]
    else:
        fields = [front.array(), columns.keys, _Fields(len(part)).varint(head[2]).array(), columns.values]
    at, view = _joined([*fields, *tail], order)
    shift = 0 if tail else 1
    ordered = sizes if order is None else sizes[order]
    times = None if columns.times is None else columns.times if order is None else columns.times[order]
    made = []
    for (partition, start), stop in zip(bounds, map(int, edges[1:]), strict=True):
        records = view[int(at[start]) + shift : int(at[stop])]
        last = base if times is None else int(times[start:stop].max())
        pieces: _Pieces = [records] if tail else [records, b"\0"]
        made.append(Run(partition, stop - start, pieces, base, last, int(ordered[start:stop].max())))
    return made


def batch_of(run: Run, codec: Codec, producer: tuple[int, int], sequence: int) -> list[bytes | memoryview]:
    """Encode a run as a transactional batch of a producer (id and epoch): the header, then the records."""
    pieces = codec.compressed(run.pieces)
    kind = codec.code | _TRANSACTIONAL
    tail = _HEAD.pack(kind, run.rows - 1, run.first_time, run.last_time, *producer, sequence, run.rows)
    check = crc32c(tail)
    for piece in pieces:
        check = crc32c(piece, check)
    return [struct.pack(">qiibI", 0, 9 + len(tail) + sum(map(len, pieces)), -1, 2, check) + tail, *pieces]


class _Fields:
    """Gathers fields of a few bytes per row, and makes them one binary column."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._columns: list[npt.NDArray[np.uint8]] = []
        self._masks: list[npt.NDArray[np.bool_] | None] = []

    def byte(self, value: int) -> _Fields:
        self._columns.append(np.full(self._rows, value, np.uint8))
        self._masks.append(None)
        return self

    def varint(self, numbers: _Ints) -> _Fields:
        sizes = _varint_sizes(numbers)
        longest = int(sizes.max())
        for place in range(longest):
            part = (numbers >> (7 * place) & 0x7F).astype(np.uint8)
            if place + 1 < longest:
                part |= np.where(sizes > place + 1, np.uint8(0x80), np.uint8(0))
            self._columns.append(part)
            self._masks.append(None if place == 0 else sizes > place)
        return self

    def array(self) -> pa.Array:
        data = np.stack(self._columns, axis=1)
        offsets = np.arange(self._rows + 1, dtype=np.int32) * data.shape[1]
        if any(mask is not None and not mask.all() for mask in self._masks):
            kept = np.ones(data.shape, bool)
            for place, mask in enumerate(self._masks):
                if mask is not None:
                    kept[:, place] = mask
            np.cumsum(kept.sum(axis=1), out=offsets[1:])
            data = data[kept]
        return pa.BinaryArray.from_buffers(pa.binary(), self._rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _kind(count: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest type that holds partition numbers: numpy radix-sorts small types."""
    return np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32


def _grouped(part: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64] | None, list[tuple[int, int]]]:
    """Return the order that groups rows by partition (None: they are grouped), and each group's partition and start."""
    order = None
    starts = np.flatnonzero(part[1:] != part[:-1]) + 1
    if len(starts) > _FEW_TURNS * (int(part.max()) + 1):
        order = np.argsort(part, kind="stable")
        part = part[order]
        starts = np.flatnonzero(part[1:] != part[:-1]) + 1
    return order, [(int(part[start]), int(start)) for start in [0, *starts]]


def _bounds(bodies: _Ints, groups: Sequence[tuple[int, int]], most_bytes: int) -> list[tuple[int, int]]:
    """Return each batch's partition and first row."""
    ends = np.cumsum(bodies + _MOST_OVERHEAD)
    bounds = []
    for (partition, start), stop in zip(groups, [*(start for _, start in groups[1:]), len(bodies)], strict=True):
        while start < stop:
            bounds.append((partition, start))
            before = int(ends[start - 1]) if start else 0
            start = min(stop, max(start + 1, int(np.searchsorted(ends, before + most_bytes, "right"))))
    return bounds


def _joined(fields: list[pa.Array], order: npt.NDArray[np.int64] | None) -> tuple[npt.NDArray[Any], memoryview]:
    """Join the fields of each row, put the rows in order, and return their offsets and their memory."""
    large = any(pa.types.is_large_binary(field.type) for field in fields)
    kind = pa.large_binary() if large else pa.binary()
    joined = pc.binary_join_element_wise(*(f.cast(kind) for f in fields), pa.scalar(b"", kind), options=_JOIN)
    if order is not None:
        joined = joined.take(pa.array(order))
    at, data = _offsets(joined)
    return at, memoryview(data)


def _offsets(values: pa.Array) -> tuple[npt.NDArray[Any], Any]:
    """Return the offsets of binary values in their memory, and that memory."""
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    return np.frombuffer(offsets, width, len(values) + 1, values.offset * np.dtype(width).itemsize), data


def _lengths(values: pa.Array) -> _Ints:
    """Return the lengths of binary values, -1 for NULL."""
    lengths = np.diff(_offsets(values)[0]).astype(np.int64)
    if values.null_count:
        lengths[_nulls(values)] = -1
    return lengths


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _zigzag(numbers: _Ints) -> _Ints:
    return (numbers << 1) ^ (numbers >> 63)


def _varint_sizes(numbers: _Ints) -> _Ints:
    """Return how many bytes each number takes as a varint, with seven bits in a byte."""
    sizes, limit, most = np.ones(len(numbers), np.int64), 1 << 7, int(numbers.max())
    while most >= limit:
        sizes += numbers >= limit
        limit <<= 7
    return sizes
