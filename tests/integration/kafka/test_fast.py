"""The fast writer: the C library it calls, and when it is used."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from exactsink.contract import ConfigError
from exactsink_kafka import fast
from exactsink_kafka.errors import Failure, Failures
from exactsink_kafka.fast import MESSAGE, FastClient, Library, MessageHead, Unusable
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.producer import PlainClient
from exactsink_kafka.writer import row_producer
from tests.integration.kafka.attempts import Attempts

PLAIN_ROWS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
NOWHERE = {"bootstrap.servers": "127.0.0.1:9", "log_level": "0", "delivery.report.only.error": "true"}
_PURGE_QUEUE = -152


class Heard(Failures):
    """Keeps every failure."""

    def __init__(self) -> None:
        super().__init__("test", KafkaOptions(bootstrap_servers="b:1"))
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
    handle = FastClient(Library(), {**NOWHERE, "queue.buffering.max.messages": "3"}, "t", heard, "test")
    data = np.frombuffer(b"keyvalue", np.uint8)
    messages = np.zeros(5, MESSAGE)
    messages["key"], messages["key_len"] = data.ctypes.data, 3
    messages["payload"], messages["len"] = data.ctypes.data + 3, 5
    messages["partition"] = 1
    assert handle.produce(messages, to_partitions=True) == 3
    assert list(messages["err"]) == [0, 0, 0, -184, -184]
    handle._library.purge(handle._producer, 7)
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
        monkeypatch.setattr(fast.confluent_kafka, "libversion", lambda: ("3.0.0", 0x030000FF))
    elif fault == "symbol":
        functions = {**fast._FUNCTIONS, "rd_kafka_no_such_function": (None, ())}
        monkeypatch.setattr(fast, "_FUNCTIONS", functions)
    elif fault == "file":
        (tmp_path / "librdkafka.so.1").write_bytes(b"no library")
        monkeypatch.setattr(fast, "_loaded", lambda: str(tmp_path / "librdkafka.so.1"))
    else:
        maps = [f"0-1 r-xp 0 00:00 1 /somewhere/{name}/librdkafka.so.1" for name in ("a", "b")]
        (tmp_path / "maps").write_text("\n".join(maps))
        monkeypatch.setattr(fast, "Path", lambda path: tmp_path / "maps")
    with pytest.raises(Unusable):
        Library()
    caplog.set_level(logging.DEBUG, "exactsink_kafka")
    auto = row_producer(options().options, PLAIN_ROWS, "id", "client", "test")
    assert isinstance(auto._client, PlainClient)
    assert "the plain writer" in caplog.text
    auto.drop()
    with pytest.raises(ConfigError, match='writer = "fast"') as failure:
        row_producer(options(writer="fast").options, PLAIN_ROWS, "id", "client", "test")
    assert 'writer = "auto"' in failure.value.next


@pytest.mark.parametrize(
    ("given", "columns", "expected"),
    [
        ({"topic": "t"}, ["key", "value"], FastClient),
        ({"topic": "t"}, ["value", "partition"], FastClient),
        ({"topic": "t"}, ["value", "topic"], FastClient),
        ({"topic": None}, ["value", "topic"], PlainClient),
        ({"topic": "t"}, ["value", "headers"], PlainClient),
        ({"topic": "t"}, ["value", "timestamp"], PlainClient),
        ({"topic": "t", "writer": "plain"}, ["key", "value"], PlainClient),
        ({"topic": "t", "writer": "fast"}, ["key", "value"], FastClient),
    ],
)
def test_which_writer_takes_which_rows(given: dict[str, str], columns: list[str], expected: type) -> None:
    schema = pa.schema([(name, pa.string()) for name in columns])
    producer = row_producer(options(**given).options, schema, "id", "client", "test")
    assert type(producer._client) is expected
    producer.drop()


def test_all_settings_reach_both_writers() -> None:
    """A setting that is refused shows that it was given."""
    for name, value in {"linger.ms": "x", "queue.buffering.max.kbytes": -5, "debug": "nothing"}.items():
        for writer in ("plain", "fast"):
            with pytest.raises(ConfigError):
                made = options(writer=writer, producer={name: value}).options
                row_producer(made, PLAIN_ROWS, "id", "client", "test")
