"""What the sender does by the leaders' codes: what is sent again, in which order, and what fails the attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from exactsink.contract import Fatal, Retryable
from exactsink_kafka.errors import Failures
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.sender import Batch, Sender
from exactsink_kafka.transactions import Transaction

OPTIONS = KafkaOptions(bootstrap_servers="b:1", topic="t")
CUT = -1


class Leaders:
    """Answers each request by the next of its codes: a number for all partitions, or some by partition. Then 0."""

    def __init__(self, codes: Sequence[int | Mapping[int, int]]) -> None:
        self.asker = self
        self.options = OPTIONS
        self.sent: list[list[bytes]] = []
        self.answered = self.located = self.most_open = 0
        self.leaders = {("t", number): 1 for number in range(10)}
        self._codes = list(codes)

    def locate(self, topic: str, seconds: float) -> None:
        self.located += 1

    def post(self, request: Any, broker: int, seconds: float) -> Any:
        batches = request._batches
        self.sent.append([b"".join(pieces) for _, pieces in batches])
        self.most_open = max(self.most_open, len(self.sent) - self.answered)
        code = self._codes.pop(0) if self._codes else 0

        def answer(seconds: float) -> Any:
            self.answered += 1
            if code == CUT:
                raise KafkaConnectionError("cut")
            by = code if isinstance(code, Mapping) else dict.fromkeys((number for number, _ in batches), code)
            found = [SimpleNamespace(index=number, error_code=by.get(number, 0)) for number, _ in batches]
            return SimpleNamespace(responses=[SimpleNamespace(partition_responses=found)])

        return SimpleNamespace(done=lambda: False, answer=answer)


def sent(codes: Sequence[int | Mapping[int, int]], batches: str = "abc", partitions: int = 1) -> Leaders:
    leaders = Leaders(codes)
    sender = Sender(leaders, "t", Transaction("id", 1, 0), Failures("doing", OPTIONS), joins=True)  # type: ignore[arg-type]
    until = time.monotonic() + 5
    sender.send([Batch(n, 1, 1, [name.encode()], 1) for name in batches for n in range(partitions)], until)
    sender.flush(until)
    return leaders


@pytest.mark.parametrize("code", [3, 5, 6, 7, 13, 14, 15, 16, 19, 20, 51, 56, 74, CUT])
def test_what_is_in_doubt_is_sent_again_oldest_first(code: int) -> None:
    leaders = sent([0, code, 45, 0])
    assert leaders.sent == [[b"a"], [b"b"], [b"c"], [b"b"], [b"c"]]
    assert leaders.located == 1


def test_a_known_batch_is_success_and_other_partitions_are_not_sent_again() -> None:
    assert sent([46, 46, 0]).sent == [[b"a"], [b"b"], [b"c"]]
    assert sent([0, {1: 6}, {1: 45}], partitions=2).sent[3:] == [[b"b"], [b"c"]]


@pytest.mark.parametrize("code", [45, 47, 48, 49, 59, 90, 120])
def test_a_lost_transaction_fails_the_attempt(code: int) -> None:
    with pytest.raises(Retryable, match="no longer this attempt's"):
        sent([0, code])


@pytest.mark.parametrize("code", [10, 18, 29, 31, 32, 53, 76, 87])
def test_what_no_other_try_helps_is_fatal(code: int) -> None:
    with pytest.raises(Fatal):
        sent([code])


def test_the_first_batch_of_a_partition_goes_alone_and_five_requests_are_on_their_way_at_most() -> None:
    """A leader without anything of the producer takes any sequence: the second batch, if it refused the first."""
    assert sent([6], "ab").sent == [[b"a"], [b"a"], [b"b"]]
    assert sent([], "abcdefghijkl").most_open == 5


def test_time_that_runs_out_says_how_many_rows_are_left() -> None:
    leaders = Leaders([6] * 10_000)
    sender = Sender(leaders, "t", Transaction("id", 1, 0), Failures("doing", OPTIONS), joins=True)  # type: ignore[arg-type]
    with pytest.raises(Retryable, match="7 rows did not reach the brokers") as late:
        sender.send([Batch(0, 7, 1, [b"a"], 1)], time.monotonic() + 0.1)
        sender.flush(time.monotonic())
    assert "none of its rows is visible" in (late.value.why or "")
