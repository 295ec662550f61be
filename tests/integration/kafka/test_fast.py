"""The fast writer: the C library it calls, and when it is used; and both writers beside a broker that hangs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from exactsink.contract import ConfigError, ExactsinkError, Retryable
from exactsink_kafka.producers import choice, library
from exactsink_kafka.producers.failures import Failure, Failures
from exactsink_kafka.producers.fast import FastProducer
from exactsink_kafka.producers.handle import Handle
from exactsink_kafka.producers.library import MESSAGE, Library, MessageHead, Unusable
from exactsink_kafka.producers.plain import PlainProducer
from exactsink_kafka.writer import KafkaWriter
from tests.integration.kafka.attempts import Attempts, attempts_on
from tests.servers.kafka import KafkaServer, own_kafka

PLAIN_ROWS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
NOWHERE = {"bootstrap.servers": "127.0.0.1:9", "log_level": "0", "delivery.report.only.error": "true"}
_PURGE_QUEUE = -152


class Heard(Failures):
    """Keeps every failure."""

    def __init__(self) -> None:
        super().__init__("test")
        self.all: list[Failure] = []

    def add(self, failure: Failure) -> None:
        self.all.append(failure)
        super().add(failure)


def options(**given: object) -> Attempts:
    return Attempts("127.0.0.1:9", "nowhere", "job", {"topic": "t", **given})


def test_the_library_is_the_file_that_confluent_kafka_has_loaded_and_no_second_copy() -> None:
    def mapped() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if "librdkafka" in line.split()[-1]}

    before = mapped()
    Library()
    assert mapped() == before
    assert len(before) == 1


def test_messages_are_laid_out_as_the_library_reads_them() -> None:
    """Rows that can't be delivered come back, with what was put into them."""
    assert MESSAGE.itemsize == 72
    assert MessageHead.partition.offset == MESSAGE.fields["partition"][1]  # type: ignore[index]
    heard = Heard()
    handle = Handle(Library(), {**NOWHERE, "queue.buffering.max.messages": "3"}, "t", heard, "test")
    data = np.frombuffer(b"keyvalue", np.uint8)
    messages = np.zeros(5, MESSAGE)
    messages["key"], messages["key_len"] = data.ctypes.data, 3
    messages["payload"], messages["len"] = data.ctypes.data + 3, 5
    messages["partition"] = 1
    assert handle.produce(messages, to_partitions=True) == 3
    assert list(messages["err"]) == [0, 0, 0, -184, -184]
    handle.purge()
    while len(heard.all) < 3:
        handle.hear(0.05)
    assert [(one.code, one.topic) for one in heard.all] == [(_PURGE_QUEUE, "t")] * 3
    assert "_PURGE_QUEUE" in heard.all[0].text
    handle.close()
    handle.close()


@pytest.mark.parametrize("fault", ["version", "symbol", "file", "two files"])
def test_a_library_that_is_not_as_known_is_not_called_and_auto_takes_the_plain_writer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, fault: str
) -> None:
    if fault == "version":
        monkeypatch.setattr(library.confluent_kafka, "libversion", lambda: ("3.0.0", 0x030000FF))
    elif fault == "symbol":
        functions = {**library._FUNCTIONS, "rd_kafka_no_such_function": (None, ())}
        monkeypatch.setattr(library, "_FUNCTIONS", functions)
    elif fault == "file":
        (tmp_path / "librdkafka.so.1").write_bytes(b"no library")
        monkeypatch.setattr(library, "_loaded", lambda: str(tmp_path / "librdkafka.so.1"))
    else:
        maps = [f"0-1 r-xp 0 00:00 1 /somewhere/{name}/librdkafka.so.1" for name in ("a", "b")]
        (tmp_path / "maps").write_text("\n".join(maps))
        monkeypatch.setattr(library, "Path", lambda path: tmp_path / "maps")
    with pytest.raises(Unusable):
        Library()
    caplog.set_level(logging.DEBUG, "exactsink_kafka")
    auto = choice.row_producer(options().options, PLAIN_ROWS, "id", "client", "test")
    assert isinstance(auto, PlainProducer)
    assert "the plain writer" in caplog.text
    auto.drop()
    with pytest.raises(ConfigError, match='writer = "fast"') as failure:
        choice.row_producer(options(writer="fast").options, PLAIN_ROWS, "id", "client", "test")
    assert 'writer = "auto"' in failure.value.next


@pytest.mark.parametrize(
    ("given", "columns", "expected"),
    [
        ({"topic": "t"}, ["key", "value"], FastProducer),
        ({"topic": "t"}, ["value", "partition"], FastProducer),
        ({"topic": "t"}, ["value", "topic"], FastProducer),
        ({"topic": None}, ["value", "topic"], PlainProducer),
        ({"topic": "t"}, ["value", "headers"], PlainProducer),
        ({"topic": "t"}, ["value", "timestamp"], PlainProducer),
        ({"topic": "t", "writer": "plain"}, ["key", "value"], PlainProducer),
        ({"topic": "t", "writer": "fast"}, ["key", "value"], FastProducer),
    ],
)
def test_which_writer_takes_which_rows(given: dict[str, str], columns: list[str], expected: type) -> None:
    schema = pa.schema([(name, pa.string()) for name in columns])
    producer = choice.row_producer(options(**given).options, schema, "id", "client", "test")
    assert type(producer) is expected
    producer.drop()


def test_all_settings_reach_both_writers() -> None:
    """A setting that is refused shows that it was given."""
    for name, value in {"linger.ms": "x", "queue.buffering.max.kbytes": -5, "debug": "nothing"}.items():
        for writer in ("plain", "fast"):
            with pytest.raises(ConfigError):
                made = options(writer=writer, producer={name: value}).options
                choice.row_producer(made, PLAIN_ROWS, "id", "client", "test")


@pytest.fixture(scope="module")
def hanging() -> Iterator[KafkaServer]:
    with own_kafka() as server:
        yield server


def test_a_broker_that_hangs_ends_every_wait_in_time(hanging: KafkaServer) -> None:
    """Flush, a full queue, and the opening, by both writers, side by side."""
    topic = hanging.new_topic("hangs")
    found: dict[str, tuple[ExactsinkError, float]] = {}
    base = attempts_on(hanging.bootstrap).with_(topic=topic)
    small = {"queue.buffering.max.messages": 10}
    row = pa.record_batch({"value": pa.array([b"v"])})
    many = pa.record_batch({"value": pa.array([b"v"] * 1000)})
    ready = {
        f"{how} {writer}": (base.with_(writer=writer, producer=small if how == "full" else {}), number)
        for number, (how, writer) in enumerate((h, w) for h in ("flush", "full") for w in ("plain", "fast"))
    }
    writers = {name: attempts.writer(row.schema, number) for name, (attempts, number) in ready.items()}

    def end(name: str, writer: KafkaWriter) -> None:
        writer._until = time.monotonic() + 3  # librdkafka itself would try for longer
        try:
            writer.write(many if name.startswith("full") else row)
            writer.pre_commit()
        except ExactsinkError as error:
            found[name] = error, time.monotonic()
        finally:
            writer.abort()

    def open_one(name: str, writer: str) -> None:
        producer = choice.row_producer(base.with_(writer=writer).options, row.schema, f"late-{writer}", "c", "test")
        try:
            producer.open(3)
        except ExactsinkError as error:
            found[name] = error, time.monotonic()
        finally:
            producer.drop()

    hanging.stall()
    started = time.monotonic()
    threads = [threading.Thread(target=end, args=one) for one in writers.items()]
    threads += [threading.Thread(target=open_one, args=(f"open {name}", name)) for name in ("plain", "fast")]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        hanging.resume()
    assert found.keys() == {*writers, "open plain", "open fast"}
    for name, (error, ended) in found.items():
        assert type(error) is Retryable, (name, error)
        assert "no row of it shows" in str(error), name
        assert ended - started < 20, name
