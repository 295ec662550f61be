"""Lists as Postgres' arrays of one dimension: by pgpq, or as bytes where the element's type is not one of pgpq's."""

from __future__ import annotations

import array
import sys

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["array_bytes", "relisted"]

_FROM_1970_TO_2000 = 946_684_800_000_000  # microseconds: where the server counts from


def relisted(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Put converted elements in the place of a list array's own; a NULL list stays NULL."""
    lengths = pc.list_value_length(lists).cast(pa.int64()).fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), _sums(lengths)])
    return pa.LargeListArray.from_arrays(offsets, elements, mask=lists.is_null() if lists.null_count else None)


def array_bytes(lists: pa.Array, elements: pa.Array, oid: int, prefix: bytes = b"") -> pa.Array:
    """Write a list array as the server's binary arrays, whose elements are of type `oid`.

    `elements` are the lists' own, flattened: texts, bytes, or timestamps; `prefix` goes before each.
    """
    values = _raw(elements)
    if prefix:
        values = pc.binary_join_element_wise(pa.scalar(prefix, pa.large_binary()), values, _none())
    lengths = pc.binary_length(values).cast(pa.int32()).fill_null(-1)
    parts = pc.binary_join_element_wise(_big_endian(lengths), values.fill_null(b""), _none())
    bodies = pc.binary_join(relisted(lists, parts).cast(pa.list_(pa.large_binary())), _none())
    counts = _big_endian(pc.list_value_length(lists).cast(pa.int32()).fill_null(0))
    head, lower = (b"".join(n.to_bytes(4, "big") for n in numbers) for numbers in ((1, 1, oid), (1,)))
    return pc.binary_join_element_wise(
        pa.scalar(head, pa.large_binary()), counts, pa.scalar(lower, pa.large_binary()), bodies, _none()
    )


def _raw(elements: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(elements.type):
        micros = pc.subtract(elements.view(pa.int64()), _FROM_1970_TO_2000)
        return pc.if_else(micros.is_valid(), _big_endian(micros.fill_null(0)), pa.scalar(None, pa.large_binary()))
    if pa.types.is_boolean(elements.type):  # nothing but NULL
        return pa.nulls(len(elements), pa.large_binary())
    return elements.cast(pa.large_binary())


def _big_endian(numbers: pa.Array) -> pa.Array:
    """Return numbers, none of them NULL, as bytes in the network's order."""
    width = numbers.type.bit_width // 8
    swapped = array.array("q" if width == 8 else "i")
    data = numbers.buffers()[1]
    swapped.frombytes(memoryview(data)[numbers.offset * width : (numbers.offset + len(numbers)) * width])
    if sys.byteorder == "little":
        swapped.byteswap()
    raw = pa.py_buffer(swapped)
    return pa.Array.from_buffers(pa.binary(width), len(numbers), [None, raw]).cast(pa.large_binary())


def _sums(lengths: pa.Array) -> pa.Array:
    return pc.cumulative_sum(lengths)


def _none() -> pa.Scalar:
    return pa.scalar(b"", pa.large_binary())
