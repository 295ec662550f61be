"""The fast writer's records as others see them: librdkafka's own bytes, and Java's consumer; and when it is used."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import ConfigError, JobContext
from exactsink_kafka import messages
from exactsink_kafka.columns import CODECS
from exactsink_kafka.columns_client import ColumnsClient
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.producer import PlainClient
from exactsink_kafka.wire import Wire
from exactsink_kafka.writer import row_producer
from tests.integration.kafka.attempts import HEADERS, Attempts, attempts_on, rows
from tests.servers.kafka import Kafka, Record
from tests.servers.kafka_jars import TOOLS, jars, java
from tests.unit.random_records import java_murmur2, random_rows, to_batch

_HEAD = 61


def test_records_are_librdkafka_s_to_the_byte(kafka: Kafka) -> None:
    """The writers differ in the sizes of their batches only."""
    values = [b"", None, b"v" * 63, b"v" * 64, b"v" * 9000, *(b"%d" % n for n in range(200))]
    keys = [None, b"", *(b"k" * (n % 150) for n in range(len(values) - 2))]
    headers = [[] if n % 3 else [{"key": "h", "value": None}, {"key": "ü" * n, "value": b"x" * n}] for n in range(205)]
    times = pa.array([1_700_000_000_000 + 37 * n * n for n in range(205)], pa.timestamp("ms", "UTC"))
    batch = pa.record_batch(
        {"key": pa.array(keys), "value": pa.array(values), "headers": pa.array(headers, HEADERS), "timestamp": times}
    )
    made = {}
    for writer in ("plain", "fast"):
        mine = attempts_on(kafka.bootstrap).with_(topic=kafka.new_topic("bytes", 1), writer=writer)
        mine.commit(mine.voted(batch))
        kafka.settle()
        made[writer] = first_batch(mine)
    attributes, last_delta, first_time, last_time = slice(21, 23), slice(23, 27), slice(27, 35), slice(35, 43)
    for part in (attributes, last_delta, first_time, last_time, slice(57, 61), slice(_HEAD, None)):
        assert made["fast"][part] == made["plain"][part]


def first_batch(attempts: Attempts) -> bytes:
    with closing(attempts.wire()) as wire:
        topic = wire.topics([attempts.options.topic or ""])[attempts.options.topic or ""]
        request = messages.fetch_request(topic.id, 0, 0)
        [answer] = wire.asker.use("fetch", lambda channel: channel.ask([(request, 1)]))
    return bytes(answer.responses[0].partitions[0].records)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [300, pytest.param(100_000, marks=pytest.mark.proof)])
def test_java_s_consumer_reads_all_codecs_with_its_checks(kafka: Kafka, size: int) -> None:
    rng, wanted, topics = random.Random(size), {}, []
    for codec in CODECS:
        for level in (-1, 9):
            topics.append(kafka.new_topic("java", 5))
            given = {"compression.type": codec, "compression.level": level, "batch.size": rng.choice([3 * size, 10**5])}
            mine = attempts_on(kafka.bootstrap).with_(topic=topics[-1], writer="fast", producer=given)
            texts = [(f"{n % 97}", f"{topics[-1]};{n};" + "x" * rng.randrange(200)) for n in range(size)]
            mine.commit(mine.voted(rows(*((k.encode(), v.encode()) for k, v in texts))))
            for key, value in texts:
                wanted[value] = (str(java_murmur2(key.encode()) % 5), key)
    found = {value: (partition, key) for partition, key, value in consumed(kafka, topics, len(wanted))}
    assert found == wanted


def consumed(kafka: Kafka, topics: list[str], count: int) -> Iterator[list[str]]:
    """Read by Kafka's console consumer, whose `check.crcs` is on; yield partition, key and value."""
    wanted = [f"print.{what}=true" for what in ("partition", "key")] + ["print.value=true", "key.separator=|"]
    command = [java(), "-cp", f"{jars(TOOLS)}/*", "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    command += ["--bootstrap-server", kafka.bootstrap, "--include", "|".join(topics), "--from-beginning"]
    command += ["--isolation-level", "read_committed", "--max-messages", str(count), "--timeout-ms", "30000"]
    for one in wanted:
        command += ["--formatter-property", one]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for line in out.stdout.splitlines():
        partition, key, value = line.split("|")
        yield [partition.removeprefix("Partition:"), key, value]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("plays", [10, pytest.param(150, marks=pytest.mark.proof)])
def test_random_rows_of_every_kind_are_read_as_they_were_written(kafka: Kafka, plays: int) -> None:
    rng = random.Random(plays)
    for number in range(plays):
        count, codec = rng.choice([1, 2, 3, 16]), list(CODECS)[number % len(CODECS)]
        sizes = rng.choices([1, 2, 65, 700], k=rng.choice([1, 3]))
        batches = [random_rows(rng, size, count, large=900_000) for size in sizes]
        given = {"compression.type": codec, "batch.size": rng.choice([2_000, 50_000, 900_000])}
        kept = {"message_timestamp_before_max_ms": str(2**63 - 1), "retention_ms": "-1"}  # there are rows of 1970
        topic = kafka.new_topic("random", count, **kept)
        mine = attempts_on(kafka.bootstrap).with_(topic=topic, writer="fast", producer=given)
        mine.commit(mine.voted(*(to_batch(rng, one) for one in batches)))
        every = (row for batch in batches for row in batch)
        wanted = Counter((row.key, row.value, tuple(row.headers or ()), row.time or 0) for row in every)
        assert Counter(map(shown, kafka.rows(topic))) == wanted, f"play {number}"
        kafka.delete_topic(topic)


def shown(record: Record) -> tuple[Any, ...]:
    """Return a record's parts, with a time of 0 where it is that of its writing."""
    return record.key, record.value, record.headers, record.timestamp if record.timestamp < 10**12 else 0


def test_check_warns_of_a_setting_that_costs_the_fast_writer(kafka: Kafka) -> None:
    mine = attempts_on(kafka.bootstrap).with_(topic=kafka.new_topic("checked"))
    for producer, said in (({"socket.keepalive.enable": True}, ["socket.keepalive.enable"]), ({"linger.ms": 5}, [])):
        options = mine.with_(producer=producer).options
        with closing(KafkaCommitter(options, JobContext(mine.job, "out", "", 1, ""))) as driver:
            warned = [one.message for one in driver.check(None, None) if "the plain writer" in one.message]
        assert [one.rpartition(" ")[2] for one in warned] == said
        producer = row_producer(options, mine.wire(), "id", "client", "test")
        assert type(producer._client) is (PlainClient if said else ColumnsClient)
        producer.drop()


@pytest.mark.parametrize("writer", ["plain", "fast"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger.ms", "s3cr3t"),
        ("queue.buffering.max.kbytes", -5),
        ("compression.type", "s3cr3t"),
        ("batch.size", "much"),
    ],
)
def test_a_setting_that_is_none_is_refused_by_both_writers(writer: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        made({"topic": "t", "writer": writer, "producer": {name: value}})
    assert f'"{value}"' not in str(refused.value), "it may be a secret"
    assert refused.value.__cause__ is refused.value.__context__ is None or writer == "fast", "a traceback shows them"


def made(given: dict[str, Any]) -> Any:
    options = Attempts("127.0.0.1:9", "nowhere", "job", given).options
    return row_producer(options, Wire(options, "client"), "id", "client", "test")
