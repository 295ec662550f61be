"""Transactions that time out, ids that expire, brokers that stall or die: no answer is wrong, and none is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest

from exactsink.contract import Committable, Retryable, Unknown
from exactsink_kafka.messages import Seen
from exactsink_kafka.transactions import Transaction, Vote
from exactsink_kafka.wire import Place, Wire, Writers
from exactsink_kafka.writer import KafkaWriter, row_producer
from tests.integration.kafka.attempts import attempts_on
from tests.integration.kafka.participants import Participants, kinds, transaction_of
from tests.servers.kafka import KafkaServer, own_kafka
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures"]

IDS_EXPIRE_MS = 1500


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """A broker to stall and kill, which forgets ids that nobody uses, and compacts at once."""
    settings = {
        "transactional.id.expiration.ms": str(IDS_EXPIRE_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "producer.id.expiration.ms": "1000",
        "producer.id.expiration.check.interval.ms": "500",
        "log.cleaner.backoff.ms": "100",
    }
    with own_kafka(settings) as made:
        yield made


def state(participants: Participants, vote: Committable) -> str:
    reported = participants.wire.describe([transaction_of(vote).id]).get(transaction_of(vote).id)
    return "expired" if reported is None else reported.state


def test_an_expired_id_is_reported_by_its_rows(server: KafkaServer) -> None:
    with Participants.of(server) as participants:
        committed, aborted = participants.vote(0, "a", "b"), participants.vote(1, "c", "d")
        participants.end(committed, commit=True)
        participants.end(aborted, commit=False)
        wait_until(lambda: {state(participants, one) for one in (committed, aborted)} == {"expired"}, "the expiry")

        assert participants.commit(committed, aborted) == ["AlreadyCommitted", "Lost"]
        server.delete_topic(participants.topic)
        [first, second] = participants.outcomes(committed, aborted)
        assert isinstance(first, Unknown)
        assert isinstance(second, Unknown)
        assert "INVALID_PRODUCER_ID_MAPPING (49)" in first.evidence


def test_a_transaction_that_timed_out_is_lost(server: KafkaServer) -> None:
    with Participants.of(server) as participants:
        late = participants.vote(0, "late", "late", timeout=1)
        wait_until(lambda: state(participants, late) in ("CompleteAbort", "expired"), "the timeout")
        assert participants.commit(late) == ["Lost"]
        assert participants.values() == []


def test_rows_that_were_compacted_away_prove_nothing(server: KafkaServer) -> None:
    configs = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.0"}
    with Participants.of(server, **configs, delete_retention_ms="0") as participants:
        votes = [participants.vote(slot, f"{slot}-a", f"{slot}-b") for slot in range(2)]
        participants.end(votes[0], commit=True)
        participants.end(votes[1], commit=False)
        numbers = iter(range(10, 10_000))

        def gone() -> bool:
            participants.end(participants.vote(next(numbers), "newer", "newer"), commit=True)
            return all(_look(participants, vote, n).producer is None for vote in votes for n in (0, 1))

        assert participants.commit(*votes) == ["AlreadyCommitted", "Lost"]
        wait_until(gone, "the cleaner")
        wait_until(lambda: {state(participants, vote) for vote in votes} == {"expired"}, "the expiry")
        for reported in participants.outcomes(*votes):
            assert isinstance(reported, Unknown)
            assert "compacted away" in reported.evidence


def _look(participants: Participants, vote: Committable, partition: int) -> Seen:
    [written] = Vote.load(vote).written
    return participants.wire.look(written.topic_id, partition, written.first_offsets[partition])


def test_a_broker_killed_between_the_commit_and_its_markers_and_down_for_longer_than_a_timeout(
    server: KafkaServer,
) -> None:
    """One participant times out while the broker is down, the others are committed: each answer is what readers see."""
    with Participants.of(server, partitions=60) as participants:
        late = participants.vote(0, "late", "late", timeout=4)
        kept = participants.vote(50, "kept", "kept")
        began = time.monotonic()
        committer = participants.committer()
        await_markers = committer._await_markers
        down = threading.Event()

        def killing(ended: Iterable[Transaction], state: str, places: Iterable[Place]) -> Writers:
            ended = list(ended)
            reported = committer._wire.describe(one.id for one in ended).values()
            if not down.is_set() and "PrepareCommit" in {one.state for one in reported}:
                participants.producers.clear()
                server.stop("kill")
                down.set()
            return await_markers(ended, state, places)

        committer._await_markers = killing  # type: ignore[method-assign]
        slots = iter(range(1, 50))
        with ThreadPoolExecutor(1) as pool:
            outcomes = []
            while not down.is_set():  # until the markers were not quicker
                slot = next(slots)
                reported = pool.submit(committer.commit, 0, [_wide(participants, slot)])
                outcomes.append(reported)
                wait_until(lambda reported=reported: reported.done() or down.is_set(), "a commit")  # type: ignore[misc]
            wait_until(lambda: time.monotonic() > began + 5, "the timeout")
            server.start()  # here: the server dies with the thread that starts it
            assert {kind for reported in outcomes for kind in kinds(reported.result(120))} <= {
                "Committed",
                "AlreadyCommitted",
            }
        committer.close()

        assert participants.commit(kept) == ["Committed"]
        [outcome] = participants.outcomes(late)
        [became] = kinds([outcome])
        assert became in ("Committed", "Lost"), outcome
        shown = [str(number) for number in range(1, slot + 1) for _ in range(60)] + ["kept", "kept"]
        assert participants.values() == sorted(shown + (["late", "late"] if became == "Committed" else []))


def test_a_broker_that_hangs_ends_every_wait_in_time(server: KafkaServer) -> None:
    """Flush, a full queue, and the opening, by both writers, side by side."""
    topic = server.new_topic("hangs")
    base = attempts_on(server.bootstrap).with_(topic=topic)
    small = {"queue.buffering.max.messages": 10}
    row, many = (pa.record_batch({"value": pa.array([b"v"] * count)}) for count in (1, 1000))

    def ending(writer: KafkaWriter, rows: pa.RecordBatch) -> Callable[[], object]:
        def end() -> None:
            writer._until = time.monotonic() + 3  # librdkafka itself would try for longer
            try:
                writer.write(rows)
                writer.pre_commit()
            finally:
                writer.abort()

        return end

    def opening(how: str) -> None:
        wire = Wire(base.options, "c", patience_seconds=3)
        producer = row_producer(base.with_(writer=how).options, wire, f"late-{how}", "c", "test")
        try:
            producer.open(3)
        finally:
            producer.drop()

    calls: list[Callable[[], object]] = []
    for number, how in enumerate(("plain", "fast")):
        calls.append(ending(base.with_(writer=how).writer(row.schema, number), row))
        calls.append(ending(base.with_(writer=how, producer=small).writer(row.schema, number + 2), many))
        calls.append(partial(opening, how))
    with ThreadPoolExecutor(len(calls)) as pool:
        server.stall()
        try:
            errors = [future.exception(20) for future in [pool.submit(call) for call in calls]]
        finally:
            server.resume()
    assert [type(error) for error in errors] == [Retryable] * len(calls)
    assert all("no row of it shows" in str(error) for error in errors)


def _wide(participants: Participants, slot: int) -> Committable:
    participants.wide(slot, 60)
    return participants.committable(slot, 60)
