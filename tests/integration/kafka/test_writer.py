"""Both writers on a real broker: what they write, and what their votes say."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timezone
from itertools import count, repeat, takewhile
from pathlib import Path

import pyarrow as pa
import pytest

from exactsink.contract import Committed, Fatal, JobContext
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.transactions import Ticket, Voted
from tests.integration.kafka.attempts import HEADERS, Attempts, Row, attempts_on, rows, topic_of, written
from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until
from tests.unit.odd_names import ODD_NAMES
from tests.unit.random_records import java_murmur2


@pytest.mark.parametrize("minutes", [-20, 20])
def test_an_executor_whose_clock_is_wrong_votes_with_the_same_deadline(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, minutes: int
) -> None:
    """Else the driver would refuse its epochs for a transaction timeout that is too short, or decide them too late."""
    now, ticket = time.time(), attempts.ticket.dump()
    monkeypatch.setattr(Attempts, "ticket", Ticket.load(ticket))
    monkeypatch.setattr(time, "time", lambda: now + minutes * 60)
    vote = attempts.voted(rows((b"k", b"v")))
    with closing(KafkaCommitter(attempts.options, JobContext(attempts.job, "out", "", 1, ""))) as driver:
        assert driver.commit(7, [vote]) == [Committed()]
    said = [record.getMessage() for record in caplog.records if "clock is" in record.getMessage()]
    behind = re.search(r"clock is at least (\d+) s behind", "".join(said))
    assert (behind and 1190 < int(behind[1]) < 1260) if minutes < 0 else not said, "the brokers' answers measure it"
    monkeypatch.undo()
    assert vote.deadline is not None
    assert now + 60 <= vote.deadline <= time.time() + 60


def test_every_kind_of_row_shows_when_another_ends_the_transaction_that_the_vote_names(
    kafka: Kafka, attempts: Attempts
) -> None:
    pairs = [(b"k", b"v"), (None, b"no key"), (b"", b"empty key"), (b"tombstone", None), (b"empty", b""), (None, None)]
    pairs += [("schlüssel-鍵".encode(), "wert-値-🙂".encode()), (b"\x00\xff", bytes(range(256))), (b"k", b"v")]
    before = time.time()
    committable = attempts.voted(rows(*pairs[:4]), rows(*pairs[4:]))
    topic = topic_of(attempts)
    assert kafka.rows(topic) == []
    assert kafka.held(topic)
    assert (committable.txn, committable.rows, committable.digest) == (attempts.txn(), len(pairs), 0)
    assert committable.deadline is not None
    assert before + 60 <= committable.deadline <= time.time() + 60
    vote = Voted.load(committable)
    assert committable.ref == vote.transaction.ref
    assert (vote.transaction.id, vote.cluster) == (attempts.id(), attempts.cluster)

    attempts.commit(committable)
    assert written(kafka, attempts) == Counter(pairs)
    first = {record.partition: record.offset for record in reversed(kafka.rows(topic))}
    assert [one.first_offsets for one in vote.written] == [first]
    with closing(attempts.wire()) as wire:
        assert vote.written[0].topic_id == wire.topics([topic])[topic].id


def test_rows_go_to_the_partition_that_they_name_or_where_java_s_client_puts_them(
    kafka: Kafka, attempts: Attempts
) -> None:
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: java_murmur2(key) for key in known} == {key: signed & 0x7FFFFFFF for key, signed in known.items()}
    keys = [*known, b"\xff\xfe\xfd", "schlüssel".encode(), *(b"k%d" % n for n in range(34))]
    pairs: list[Row] = [(key, b"%d" % n) for n, key in enumerate(keys)]
    named = [(n % 3 if n % 4 else None) for n in range(40)]
    batch = rows(*pairs, partition=pa.array(named, pa.int32()))
    attempts.commit(attempts.voted(batch.slice(3, 20), batch.slice(23)))
    found = {(record.key, record.value): record.partition for record in kafka.rows(topic_of(attempts))}
    assert found.keys() == set(pairs[3:])
    for pair, partition in zip(pairs[3:], named[3:], strict=True):
        assert pair[0] is not None
        assert found[pair] == (java_murmur2(pair[0]) % 3 if partition is None else partition)


def test_every_type_of_column_sliced_or_not(kafka: Kafka, attempts: Attempts) -> None:
    texts = ["a", None, "", "ä" * 300, "d", None, "e", ""]
    batches = []
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        whole = pa.record_batch({"value": pa.array(texts, kind), "key": pa.array(texts[::-1], kind)})
        batches += [whole, whole.slice(2, 4), whole.slice(1, 1), whole.slice(2, 1), whole.slice(0, 0)]
    attempts.commit(attempts.voted(*batches))
    shown = pa.schema([("value", pa.binary()), ("key", pa.binary())])
    reported = [row for batch in batches for row in batch.cast(shown).to_pylist()]
    expected = Counter((row["key"], row["value"]) for row in reported)
    assert written(kafka, attempts) == expected
    odd = pa.array([b"\xff\xfe", b""], pa.binary()).view(pa.string())  # no UTF-8, and empty
    attempts.commit(attempts.voted(pa.record_batch({"value": odd}), attempt=1))
    assert written(kafka, attempts) == expected + Counter([(None, b"\xff\xfe"), (None, b"")])


def test_a_full_queue_makes_rows_wait_and_keeps_their_order(kafka: Kafka, attempts: Attempts) -> None:
    """A column `topic` counts nothing beside the option."""
    mine = attempts.with_(producer={"queue.buffering.max.messages": 30, "linger.ms": 1})
    pairs: list[Row] = [(b"k%d" % (n % 5), b"%05d" % n) for n in range(1500)]
    mine.commit(mine.voted(rows(*pairs, topic=pa.array(["elsewhere"] * len(pairs)))))
    for key in {key for key, _ in pairs}:
        values = [record.value for record in kafka.rows(topic_of(mine)) if record.key == key]
        assert values == [value for other, value in pairs if other == key]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [("plain", 0), ("fast", 0), pytest.param("fast", 300, marks=pytest.mark.proof)],
    indirect=["attempts"],
)
def test_40_writers_in_one_process_keep_no_threads_no_files_and_no_memory(
    kafka: Kafka, attempts: Attempts, seconds: int
) -> None:
    """Two of five attempts are given up: one is aborted, and one forgotten, because its task was killed."""
    epochs, shown = count(), list[int]()
    rss = dict[int, int]()  # in pages, by the minute

    def write(slot: int, until: float = 0) -> None:
        for number in takewhile(lambda number: number < 5 or time.monotonic() < until, count()):
            epoch = next(epochs)
            writer = attempts.writer(rows((b"k", b"v")).schema, slot)
            writer.write(rows(*[(b"%d" % row, b"v" * 1000) for row in range(100 * epoch, 100 * epoch + 100)]))
            if number % 5 == 0:
                writer.abort()
            elif number % 5 != 3:
                attempts.commit(writer.pre_commit())
                shown.append(epoch)
            del writer
            rss[max(0, int(until - time.monotonic())) // 60] = int(Path("/proc/self/statm").read_text().split()[1])

    write(40)  # imports, and what is made once
    rss.clear()
    before = held()
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(write, range(40), repeat(time.monotonic() + seconds)))
    wait_until(lambda: held() <= before, f"the writers to be gone ({before})")
    sizes = [size >> 8 for size in rss.values()]
    print(f"{len(shown)} epochs; MB by the minute: {sizes}")
    assert not seconds or sizes[-1] < sizes[0] + 50
    attempts.end(*[one.transaction for one in attempts.open_ids()], commit=False)
    keys = Counter(int(record.key or b"") for record in kafka.rows(topic_of(attempts)))
    assert keys == Counter(100 * epoch + row for epoch in shown for row in range(100))


def held() -> list[int]:
    """Count this process's threads and open files."""
    return [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]


def test_headers_timestamps_and_topics_of_rows(kafka: Kafka) -> None:
    one, two = kafka.new_topic("one"), kafka.new_topic("two")
    attempts = attempts_on(kafka.bootstrap)  # the plain writer: rows name their topics
    headers = [[("h", b"1"), ("h", None), ("", b"")], None, [], [("ü", b"\xff")]]
    moments = [datetime(2026, 1, 2, 3, 4, 5, 678999, timezone.utc), None, datetime(1970, 1, 1, 0, 0, 1), None]
    batch = pa.record_batch(
        {
            "topic": pa.array([one, two, one, two]),
            "value": pa.array(["a", "b", "c", "d"]),
            "headers": pa.array([h and [{"key": k, "value": v} for k, v in h] for h in headers], HEADERS),
            "timestamp": pa.array(moments, pa.timestamp("us", "Europe/Berlin")),
            "partition": pa.array([0, 1, 1, 0], pa.int32()),
        }
    )
    now = time.time() * 1000
    committable = attempts.voted(batch)
    attempts.commit(committable)
    records = {record.value: record for record in kafka.rows(one) + kafka.rows(two)}
    assert {value: (record.topic, record.partition) for value, record in records.items()} == {
        b"a": (one, 0),
        b"b": (two, 1),
        b"c": (one, 1),
        b"d": (two, 0),
    }
    assert [records[value].headers for value in (b"a", b"b", b"c", b"d")] == [tuple(h or ()) for h in headers]
    assert (records[b"a"].timestamp, records[b"c"].timestamp) == (1767323045678, 1000)
    assert now - 1000 < records[b"b"].timestamp < now + 60_000
    assert {topic.topic: dict(topic.first_offsets) for topic in Voted.load(committable).written} == {
        one: {0: 0, 1: 0},
        two: {0: 0, 1: 0},
    }


def test_odd_names_of_headers_and_odd_keys_arrive_as_they_are(kafka: Kafka) -> None:
    mine, names = attempts_on(kafka.bootstrap).with_(topic=kafka.new_topic("odd")), list(ODD_NAMES.values())
    given = [[{"key": name, "value": name.encode()}] for name in names]
    pairs = [(name.encode(), name.encode()) for name in names]
    with pytest.raises(Fatal, match="headers is with a NUL in a key"):  # never cut
        mine.voted(rows((b"k", b"v"), headers=pa.array([[{"key": "nul \0 within", "value": b""}]], HEADERS)))
    mine.commit(mine.voted(rows(*pairs, headers=pa.array(given, HEADERS)), attempt=1))
    found = [(one.key, one.value, one.headers) for one in kafka.rows(topic_of(mine))]
    wanted = [(key, value, ((key.decode(), value),)) for key, value in pairs]
    assert sorted(found, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("odd", [*ODD_NAMES.values(), "nul\0within"], ids=[*ODD_NAMES, "nul"])
def test_rows_that_name_an_odd_topic_fail_their_task(kafka: Kafka, odd: str) -> None:
    given = attempts_on(kafka.bootstrap).with_(producer={"topic.metadata.propagation.max.ms": 100})
    with pytest.raises(Fatal, match="topic"):
        given.voted(rows((b"k", b"v"), topic=pa.array([odd])))
    with pytest.raises(ValueError, match="topic"):
        _ = given.with_(topic=odd).options
