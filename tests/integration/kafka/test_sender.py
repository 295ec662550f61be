"""The fast writer while answers are lost, requests come late and leaders die: each row once, or no vote."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest

from exactsink.contract import Committable, Retryable
from exactsink_kafka.errors import Failures
from exactsink_kafka.sender import Sender
from tests.integration.kafka.attempts import Attempts, attempts_on
from tests.servers.kafka import Kafka, KafkaServer
from tests.servers.kafka_cluster import COPIES, KafkaCluster, own_cluster
from tests.servers.kafka_proxy import FAULTS, KafkaProxy
from tests.servers.ports import Ports
from tests.servers.process import owned

_BATCHES, _ROWS = 12, 400
_PADDING = os.urandom(60)


def play(attempts: Attempts, first: int, slot: int) -> tuple[Committable, int]:
    """Write rows as Spark does, attempt after attempt; return the vote, and how many attempts failed."""
    for number in range(12):
        writer = attempts.writer(pa.schema([("value", pa.binary())]), slot + number)
        try:
            for start in range(first, first + _BATCHES * _ROWS, _ROWS):
                values = [b"%d;%b" % (row, _PADDING) for row in range(start, start + _ROWS)]
                writer.write(pa.record_batch({"value": pa.array(values, pa.binary())}))
            return writer.pre_commit(), number
        except Retryable:
            writer.abort()
    raise AssertionError("no attempt came through")


def amiss(kafka: Kafka, topic: str, rows: int) -> str:
    """Return how many rows are lost and doubled, and how many stand behind a later one in their partition."""
    found = [(record.partition, int((record.value or b"-1").split(b";")[0])) for record in kafka.rows(topic)]
    seen, turned = Counter(row for _, row in found), sum(one > other for one, other in pairwise(found))
    lost, doubled = Counter(range(rows)) - seen, seen - Counter(range(rows))
    return f"{lost.total()} lost, {doubled.total()} doubled, {turned} behind" if lost or doubled or turned else ""


def options(rng: random.Random) -> dict[str, object]:
    return {"producer": {"batch.size": rng.choice([4_000, 20_000]), "compression.type": rng.choice(["none", "zstd"])}}


@pytest.fixture(scope="module")
def cut() -> Iterator[tuple[KafkaServer, KafkaProxy]]:
    """A broker that is reached through a proxy only, by itself, too."""
    ports = Ports(1)
    server = KafkaServer({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports.numbers[0]}"})
    proxy = KafkaProxy(ports.numbers[0], server.bootstrap, 7)
    with owned(server):
        yield server, proxy
    proxy.close()


def played(cut: tuple[KafkaServer, KafkaProxy], plays: int, manners: Callable[[int], Mapping[str, object]]) -> None:
    """Play through the proxy, each time by other manners of its; most of it is met without another attempt."""
    server, proxy = cut
    topic, failed = server.new_topic("cut", partitions=3), 0
    for number in range(plays):
        attempts = attempts_on(server.bootstrap).with_(topic=topic, writer="fast", **manners(number))
        vote, more = play(attempts, number * _BATCHES * _ROWS, 0)
        proxy.chance, proxy.slow, failed = 0.0, 0.0, failed + more
        attempts.commit(vote)
        attempts.end(*[one.transaction for one in attempts.open_ids()], commit=False)  # as a sweep does
    assert amiss(server, topic, plays * _BATCHES * _ROWS) == ""
    assert failed < plays


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plays", [8, pytest.param(200, marks=pytest.mark.proof)])
@pytest.mark.parametrize("joins", [False, True], ids=["transaction.version 1", "transaction.version 2"])
def test_answers_are_lost_and_requests_come_late(
    cut: tuple[KafkaServer, KafkaProxy], monkeypatch: pytest.MonkeyPatch, joins: bool, plays: int
) -> None:
    server, proxy = cut
    _play_on(server, joins)
    _joining(monkeypatch, joins)
    rng, before = random.Random(plays), proxy.struck.copy()

    def manners(number: int) -> Mapping[str, object]:
        proxy.chance = rng.choice([0.02, 0.1, 0.3])
        return options(rng)

    played(cut, plays, manners)
    assert set(proxy.struck - before) == set(FAULTS), "each fault was played"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plays", [2, pytest.param(30, marks=pytest.mark.proof)])
def test_a_broker_answers_slowly_and_after_a_request_has_been_given_up(
    cut: tuple[KafkaServer, KafkaProxy], monkeypatch: pytest.MonkeyPatch, plays: int
) -> None:
    late, note = list[str](), Failures.note
    monkeypatch.setattr("exactsink_kafka.sender._MOST_SECONDS", 0.4)
    monkeypatch.setattr(Failures, "note", lambda self, failure: [late.append(failure.text), note(self, failure)])

    def manners(number: int) -> Mapping[str, object]:
        cut[1].slow = [0.5, 0.3, 0.1][number % 3]
        return {"producer": {"batch.size": 20_000}}

    played(cut, plays, manners)
    assert any("RequestTimedOutError" in text for text in late), "answers came too late"


def _play_on(kafka: Kafka, joins: bool) -> None:
    with closing(attempts_on(kafka.bootstrap).wire()) as wire:
        if joins and not wire.cluster().joins:
            pytest.skip("this cluster's transaction.version is below 2")


def _joining(monkeypatch: pytest.MonkeyPatch, joins: bool) -> None:
    made = Sender.__init__
    monkeypatch.setattr(Sender, "__init__", lambda *a, **given: made(*a, **{**given, "joins": joins}))


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with own_cluster() as made:
        yield made


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plays", [2, pytest.param(40, marks=pytest.mark.proof)])
def test_leaders_are_killed_with_requests_in_flight(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, plays: int
) -> None:
    """Every second one is stalled instead, and goes on when others lead in its place."""
    _joining(monkeypatch, attempts_on(cluster.bootstrap).raises)
    topic = cluster.new_topic("killed", 3, copies=COPIES)
    base = attempts_on(cluster.bootstrap).with_(topic=topic, writer="fast", transaction_timeout_seconds=120)
    with closing(base.wire()) as wire:
        wire.ask(wire.about_texts("any"))  # makes Kafka's own topic of groups
    rng = random.Random(plays)
    for number in range(plays):
        attempts = base.with_(**options(rng))
        cluster.wait_whole(topic)
        broker = cluster.leader(topic)
        harm, heal = (broker.stop, broker.launch) if number % 2 else (broker.stall, broker.resume)
        vote, _ = struck(monkeypatch, rng, harm, partial(play, attempts, number * _BATCHES * _ROWS, 16 * number))
        heal()
        broker.wait_ready()
        attempts.commit(vote)
        attempts.end(*[one.transaction for one in attempts.open_ids()], commit=False)  # as a sweep does
    assert amiss(cluster, topic, plays * _BATCHES * _ROWS) == ""


def struck(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, harm: Callable[..., object], call: Callable[[], tuple]
) -> tuple:
    """Call, with harm done once when some requests are on their way."""
    left, post, lock = [rng.randrange(3, 12)], Sender._post, threading.Lock()

    def posted(self: Sender, leader: int, batches: list) -> None:
        post(self, leader, batches)
        with lock:
            left[0] -= 1
            if left[0] == 0:
                harm("kill") if harm.__name__ == "stop" else harm()

    with monkeypatch.context() as patched:
        patched.setattr(Sender, "_post", posted)
        return call()
