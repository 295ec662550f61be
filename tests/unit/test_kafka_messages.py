"""Whose rows lie at an offset: of the batch that holds it, and of no other that a broker sends along."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka.record import MemoryRecordsBuilder

from exactsink_kafka.messages import seen


def batch(first: int, count: int, producer: tuple[int, int] | None) -> bytes:
    """Make a batch as brokers keep it; a producer of None is one without transactions."""
    pid, epoch = producer or (-1, -1)
    builder = MemoryRecordsBuilder(2, 0, 1 << 20, 0, producer is not None, pid, epoch, 0 if producer else -1)
    for number in range(count):
        builder.append(number, b"k", b"v", [])
    builder.close()
    made = bytearray(builder.buffer())
    made[:8] = first.to_bytes(8, "big")  # the broker's own: outside of the checksum
    return bytes(made)


def producer_at(offset: int, records: bytes | None) -> tuple[int, int] | None:
    reported = SimpleNamespace(aborted_transactions=None, log_start_offset=0, last_stable_offset=99, records=records)
    return seen(reported, offset).producer


OURS, OTHERS = (7, 4), (8, 0)


@pytest.mark.parametrize("offset", [10, 11, 12])
def test_the_batch_that_holds_the_offset_reports_whose_it_is(offset: int) -> None:
    assert producer_at(offset, batch(10, 3, OURS)) == OURS


def test_batches_before_the_offset_are_passed_over() -> None:
    assert producer_at(10, batch(7, 3, OTHERS) + batch(10, 3, OURS)) == OURS
    assert producer_at(10, batch(5, 3, OURS)) is None


@pytest.mark.parametrize("later", [OTHERS, OURS])
def test_a_batch_behind_a_gap_does_not_hold_the_offset(later: tuple[int, int]) -> None:
    assert producer_at(10, batch(12, 3, later)) is None
    assert producer_at(10, batch(5, 2, OURS) + batch(12, 3, later)) is None


def test_rows_outside_of_transactions_and_no_rows_at_all_are_nobodys() -> None:
    assert producer_at(10, batch(10, 3, None)) is None
    assert producer_at(10, b"") is None
    assert producer_at(10, None) is None
    assert producer_at(10, batch(10, 3, OURS)[:-1]) is None  # cut off
