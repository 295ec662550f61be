"""Transactions that time out, ids that expire, brokers that stall or die: no answer is wrong, and none is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from exactsink.contract import Committable, Event, Retryable, Txn, Unknown
from exactsink_kafka.columns import Codec, Columns, batch_of, runs_of
from exactsink_kafka.messages import Seen, produce_request
from exactsink_kafka.outcomes import resolve
from exactsink_kafka.transactions import PAYLOAD_VERSION, Transaction, Voted, Written
from exactsink_kafka.wire import Place, Wire, Writers
from exactsink_kafka.writer import KafkaWriter, row_producer
from tests.integration.kafka.attempts import attempts_on
from tests.integration.kafka.marked import Driver, Site
from tests.integration.kafka.participants import TOKEN, Participants, kinds, transaction_of
from tests.servers.kafka import KafkaServer, own_kafka
from tests.servers.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """A broker to stall and kill, which forgets ids that nobody uses, and compacts at once."""
    settings = {
        "transactional.id.expiration.ms": "1500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "producer.id.expiration.ms": "1000",
        "producer.id.expiration.check.interval.ms": "500",
        "log.cleaner.backoff.ms": "100",
        "transaction.partition.verification.enable": "false",  # so that rows can stand in a transaction nobody knows
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


@pytest.mark.parametrize("writer", ["plain", "fast"])
def test_a_decided_epoch_that_times_out_before_its_commit_is_written_again(
    server: KafkaServer, tmp_path: Path, writer: str
) -> None:
    """Flink passes over it: its job goes on, and the rows are nowhere."""
    site, seen = Site(server, writer=writer, transaction_timeout_seconds=8), []

    def hear(event: Event) -> None:
        seen.append((event.name, event.edge, event.epoch))
        if seen[-1] == ("decide", "after", 1):
            assert server.held(site.topic)
            wait_until(lambda: not server.held(site.topic), "the timeout")

    Driver(site, tmp_path / "journal").run(0, 1, 2, hear=[hear])
    assert ("redecided", "", 1) in seen
    assert site.values() == [b"0", b"1", b"2"]


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
    [written] = Voted.load(vote).written
    return participants.wire.look(written.topic_id, partition, written.first_offsets[partition])


@pytest.mark.parametrize(("marked", "outcome"), [(None, "Committed"), (True, "AlreadyCommitted"), (False, "Lost")])
def test_an_end_without_markers_whose_id_expired_is_written_where_it_lacks(
    server: KafkaServer, marked: bool | None, outcome: str
) -> None:
    """Kafka may lose markers when a coordinator dies, and then forgets the id: nobody else would ever end it."""
    with Participants.of(server) as participants:
        vote = forgotten(participants, 0)
        if marked is not None:
            _mark(participants, vote, 1, commit=marked)
        with closing(participants.committer()) as driver:
            assert kinds(driver.assess(0, [vote])) == [outcome if outcome == "Lost" else "Prepared"]
        assert participants.commit(vote) == [outcome]
        _mark(participants, vote, 0, commit=outcome != "Lost")  # once more, as another driver may: it changes nothing
        assert not server.held(participants.topic)
        assert participants.values() == ([] if outcome == "Lost" else ["row", "row"])


def test_a_forgotten_transaction_is_only_committed_where_it_is_whole_and_seen(server: KafkaServer) -> None:
    with Participants.of(server) as participants:
        foreign = participants.begin("foreign", "x", "x")
        hidden, halved = forgotten(participants, 0), forgotten(participants, 1)
        _mark(participants, hidden, 1, commit=False)
        with pytest.raises(Retryable, match="holds the last stable offset") as refused:
            resolve(participants.wire, Voted.load(hidden), "49", wait_seconds=0.1)
        assert f"producer id {transaction_of(hidden).producer_id} " not in str(refused.value), "it waits for others"
        foreign.commit_transaction()
        assert participants.commit(hidden) == ["Lost"]
        _mark(participants, halved, 1, commit=True)
        participants.delete_records(1, 4)
        [unknown] = participants.outcomes(halved)
        assert isinstance(unknown, Unknown)
        assert "is open, and nobody will end it" in unknown.evidence


def forgotten(participants: Participants, slot: int) -> Committable:
    """Return the vote of a transaction that is open in two partitions, and whose id its coordinator has forgotten."""
    wire, topic = participants.wire, participants.topic
    one = wire.take(participants.id(slot))
    wait_until(lambda: not wire.describe([one.id]), "the expiry")
    runs = runs_of(Columns(pa.array([b"row"] * 2)), np.array([0, 1]), 1000, int(time.time() * 1000))
    batches = [(run.partition, batch_of(run, Codec("none"), one.producer, 0)) for run in runs]
    request = produce_request(one, topic, batches, 30, joins=False)
    [answer] = wire.asker.use("write", lambda channel: channel.ask([(request, 1)]))
    assert {there.error_code for there in answer.responses[0].partition_responses} == {0}
    begins = {number: row.first_offset for (_, number), row in wire.rows_of(one, [(topic, 0), (topic, 1)]).items()}
    vote = Voted(one, wire.cluster().id, (Written(topic, wire.topics([topic])[topic].id, begins),))
    txn = Txn(participants.job, 0, "out", 1, TOKEN, slot, slot)
    return Committable(txn, 2, vote.dump(), PAYLOAD_VERSION, store_ref=one.ref)


def _mark(participants: Participants, vote: Committable, partition: int, *, commit: bool) -> None:
    one = transaction_of(vote)
    ended = Transaction(one.id, one.producer_id, one.producer_epoch + 1)
    assert participants.wire.mark(ended, (participants.topic, partition), 0, commit=commit) == 0


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
        [became] = participants.commit(late)
        assert became in ("Committed", "Lost")
        shown = [str(number) for number in range(1, slot + 1) for _ in range(60)] + ["kept", "kept"]
        assert participants.values() == sorted(shown + (["late", "late"] if became == "Committed" else []))


def test_a_broker_that_hangs_ends_every_wait_in_time(server: KafkaServer) -> None:
    """Flush, a full queue, and the opening, by both writers, side by side."""
    base = attempts_on(server.bootstrap).with_(topic=server.new_topic("hangs"))
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
    assert all("none of its rows is visible" in str(error) for error in errors)


def _wide(participants: Participants, slot: int) -> Committable:
    participants.wide(slot, 60)
    return participants.committable(slot, 60)
