"""What `verify` counts in a topic: the rows of the epoch's own transactions that a reader of committed rows gets."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import TopicPartition

from exactsink.contract import Retryable
from tests.integration.kafka.participants import Participants


def test_rows_are_counted_by_their_transactions_whatever_lies_between(participants: Participants) -> None:
    first, aborted, second = (participants.vote(slot, *values) for slot, values in enumerate(("abcd", "xy", "efg")))

    def rows() -> dict[int, tuple[int | None, bool]]:
        """Return what is counted of each epoch, and whether something is said to be amiss."""
        with closing(participants.committer()) as committer:
            found = committer.audit({0: [first], 1: [second], 2: [aborted], 3: [first, second], 4: []}, deep=False)
        return {epoch: (one.rows, one.why != "records of its transactions") for epoch, one in found.items()}

    participants.end(first, second, commit=True)
    with pytest.raises(Retryable, match=r"block at offset \d+: rows after it can't be counted"):
        rows()  # the third is open among them
    participants.end(aborted, commit=False)
    again = participants.vote(0, "later", "later")  # under the same producer id
    participants.end(again, commit=True)
    assert rows() == {0: (4, False), 1: (3, False), 2: (0, False), 3: (7, False), 4: (0, False)}

    admin, place = participants.kafka.admin(), TopicPartition(participants.topic, 0, 1)
    admin.delete_records([place])[place].result(30)
    assert rows() == {0: (3, True), 1: (3, True), 2: (0, True), 3: (6, True), 4: (0, False)}
    participants.again()
    assert rows()[3] == (0, True)
