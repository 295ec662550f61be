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
HELD = [batch(10, 3, OURS), batch(9, 2, OURS), batch(8, 3, OURS), batch(7, 3, OTHERS) + batch(10, 3, OURS)]
NOT_HELD = {
    "before the offset": batch(5, 3, OURS),
    "behind a gap": batch(12, 3, OURS),
    "around a gap": batch(5, 2, OURS) + batch(12, 3, OTHERS),
    "outside of transactions": batch(10, 3, None),
    "nothing": b"",
    "no records at all": None,
    "cut off": batch(10, 3, OURS)[:-1],
}


@pytest.mark.parametrize("records", HELD)
def test_the_batch_that_holds_the_offset_reports_whose_it_is(records: bytes) -> None:
    assert producer_at(10, records) == OURS


@pytest.mark.parametrize("records", NOT_HELD.values(), ids=NOT_HELD)
def test_what_does_not_hold_the_offset_is_nobodys(records: bytes | None) -> None:
    assert producer_at(10, records) is None
