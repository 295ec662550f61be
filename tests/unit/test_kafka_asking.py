"""Requests are made until a broker answers: a moved coordinator is found anew, a broken connection is replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, SaslAuthenticationFailedError
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import MetadataRequest

from exactsink.contract import Fatal, Retryable
from exactsink_kafka.messages import Cluster, Offset, OpenProducer
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Transaction
from exactsink_kafka.wire import Wire

ONE, OTHER = Transaction("a.b.g1-ab.s1", 1, 0), Transaction("a.b.g1-ab.s2", 2, 0)


@dataclass
class Brokers:
    """Channels that answer as scripted: `coordinators` and `codes` by id, one after the other, the last stays."""

    coordinators: dict[str, list[int]] = field(default_factory=dict)
    codes: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)
    found: list[tuple[str, ...]] = field(default_factory=list)
    made: int = 0
    closed: int = 0

    def __call__(self, options: KafkaOptions, client_id: str, seconds: float) -> Brokers:
        assert 0 < seconds <= 30
        self.made += 1
        return self

    def find(self, ids: Iterable[str], kind: object) -> list[tuple[str, int, int]]:
        self.found.append(tuple(ids))
        nodes = {name: _next(self.coordinators.get(name, [1])) for name in self.found[-1]}
        return [(name, 0 if node > 0 else -node, node) for name, node in nodes.items()]

    def ask(self, requests: Sequence[tuple[Any, int]]) -> list[Any]:
        if self.failures:
            raise self.failures.pop(0)
        self.asked.append(tuple(broker for _, broker in requests))
        codes = [_next(self.codes.get((broker, request.transactional_id), [0])) for request, broker in requests]
        return [SimpleNamespace(error_code=code) for code in codes]

    def alike(self) -> bool:
        return True

    def close(self) -> None:
        self.closed += 1


def _next(given: list[int]) -> int:
    return given.pop(0) if len(given) > 1 else given[0]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr("exactsink_kafka.channel.Channel", made)
    monkeypatch.setattr(Wire, "cluster", lambda _: Cluster("c", (1, 2, 3), 5, 2))  # asked by the first end
    return made


def ended(patience: float = 30.0) -> Sequence[int]:
    wire = Wire(KafkaOptions(bootstrap_servers="b:9092"), "me", patience_seconds=patience)
    return wire.end([ONE, OTHER], commit=True)


def test_all_coordinators_are_found_by_one_request_and_asked_side_by_side(brokers: Brokers) -> None:
    brokers.coordinators = {ONE.id: [1], OTHER.id: [2]}
    wire = Wire(KafkaOptions(bootstrap_servers="b:9092"), "me")
    assert wire.end([ONE, OTHER], commit=True) == [0, 0]
    assert wire.end([OTHER, ONE], commit=False) == [0, 0]
    assert brokers.found == [(ONE.id, OTHER.id)]
    assert brokers.asked == [(1, 2), (2, 1)]
    assert brokers.made == 1


def test_nothing_is_waited_for_once_all_have_answered(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("exactsink.toolkit.waiting.time.sleep", pauses.append)
    brokers.codes = {(1, ONE.id): [51, 0]}
    assert ended() == [0, 0]
    assert len(pauses) == 1, "before the second try, and not after it"


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_coordinator_that_has_moved_is_found_anew_and_only_its_ids_are_asked_for_again(
    brokers: Brokers, code: int
) -> None:
    brokers.coordinators = {ONE.id: [1, 3], OTHER.id: [1]}
    brokers.codes = {(1, ONE.id): [code]}
    assert ended() == [0, 0]
    assert brokers.found == [(ONE.id, OTHER.id), (ONE.id,)]
    assert brokers.asked == [(1, 1), (3,)]


def test_a_coordinator_that_is_not_elected_yet_is_asked_for_again(brokers: Brokers) -> None:
    brokers.coordinators = {ONE.id: [-15, -15, 2]}
    assert ended() == [0, 0]
    assert brokers.asked == [(1,), (), (2,)]


def test_markers_that_are_being_written_are_waited_for_at_the_same_coordinator(brokers: Brokers) -> None:
    brokers.codes = {(1, OTHER.id): [51, 51, 0], (1, ONE.id): [90]}
    assert ended() == [90, 0]
    assert brokers.found == [(ONE.id, OTHER.id)]
    assert brokers.asked == [(1, 1), (1,), (1,)]


@pytest.mark.parametrize("code", [14, 51])
def test_the_last_code_is_given_when_the_patience_is_over(brokers: Brokers, code: int) -> None:
    brokers.codes = {(1, ONE.id): [code]}
    began = time.monotonic()
    assert ended(patience=0.05) == [code, 0]
    assert time.monotonic() - began < 5
    assert len(brokers.asked) > 1


def test_a_broken_connection_is_replaced_and_one_that_stays_broken_is_given_up(brokers: Brokers) -> None:
    brokers.failures = [KafkaConnectionError("lost"), OSError("lost too")]
    assert ended() == [0, 0]
    assert (brokers.made, brokers.closed) == (3, 2)
    assert brokers.found == [(ONE.id, OTHER.id)] * 3  # what is cached belongs to the connection
    brokers.failures = [KafkaConnectionError("lost")] * 1000
    with pytest.raises(Retryable, match="commit transactions: Kafka at b:9092 did not answer"):
        ended(patience=0.05)
    assert brokers.made == brokers.closed + 1 > 4


class Releases(Brokers):
    """Brokers of different releases: each takes requests up to its own version."""

    versions: dict[int, int]

    def refresh(self) -> tuple[str, tuple[int, ...]]:
        return "c", tuple(self.versions)

    def alike(self) -> bool:
        return len({*self.versions.values()}) == 1

    def ask(self, requests: Sequence[tuple[Any, int]]) -> list[Any]:
        for request, broker in requests:
            BrokerVersionData(api_versions={request.API_KEY: (0, self.versions[broker])}).api_version(request)
        listed = [SimpleNamespace(transactional_id=f"a.b.g{broker}-ab.s1") for _, broker in requests]
        return [SimpleNamespace(error_code=0, transaction_states=[one]) for one in listed]


def test_brokers_of_two_releases_are_each_asked_in_their_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = Releases(), []
    made.versions = {1: 2, 2: 1}
    monkeypatch.setattr("exactsink_kafka.channel.Channel", made)
    wire = Wire(KafkaOptions(bootstrap_servers="b:9092"), "me", patience_seconds=0.05)
    monkeypatch.setattr(wire, "describe", lambda ids: asked.extend(ids) or {})
    assert wire.ongoing("a.b.g") == []
    assert asked == ["a.b.g1-ab.s1", "a.b.g2-ab.s1"]
    monkeypatch.setattr(wire, "cluster", lambda: Cluster("c", (1, 2), 5, 2))  # as it was, before a broker went back
    for versions, kind in (({1: 5, 2: 4}, Retryable), ({1: 4, 2: 4}, Fatal)):
        made.versions = versions
        made.coordinators = {ONE.id: [2]}
        with pytest.raises(kind, match="too old"):
            wire.end([ONE], commit=True)


@pytest.mark.parametrize("failure", [SaslAuthenticationFailedError("no"), IncompatibleBrokerVersion("old")])
def test_what_another_try_can_not_help_is_reported_at_once(brokers: Brokers, failure: Exception) -> None:
    brokers.failures = [failure]
    with pytest.raises(Fatal):
        ended()
    assert (brokers.made, brokers.closed) == (1, 1)


@pytest.mark.parametrize("asked", ["describe", "write_offset", "topics", "find", "about_texts"])
def test_an_answer_that_lacks_what_was_asked_for_says_nothing_of_it(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    empty = SimpleNamespace(transaction_states=[], topics=[], groups=[], error_code=0, cluster_id="c")
    monkeypatch.setattr(brokers, "ask", lambda requests: [empty for _ in requests])
    wire = Wire(KafkaOptions(bootstrap_servers="b:9092"), "me", patience_seconds=0.05)
    if asked == "find":
        monkeypatch.setattr(brokers, "find", lambda ids, kind: [])
    calls: dict[str, Callable[[], object]] = {
        "describe": lambda: wire.describe([ONE.id, OTHER.id]),
        "write_offset": lambda: wire.write_offset(ONE, Offset("g", "t", 0, 1, ""), joins=True),
        "topics": lambda: wire.topics(["t"]),
        "find": lambda: wire.find(ONE.id),
        "about_texts": lambda: wire.ask(wire.about_texts("g", "t")),
    }
    with pytest.raises(Retryable, match="did not answer"):
        calls[asked]()


class Leaders(Brokers):
    """Brokers of which `leader` leads the one partition; `asked` names each step's requests."""

    leader = 1
    steps: list[list[str]]

    def ask(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        self.steps.append([type(request).__name__.removesuffix("Request") for request, _ in requests])
        return [self._answer(request, broker) for request, broker in requests]

    def _answer(self, request: Any, broker: int | None) -> Any:
        if isinstance(request, MetadataRequest):
            led = SimpleNamespace(partition_index=0, leader_id=self.leader)
            topic = SimpleNamespace(name="rows", topic_id="id", error_code=0, partitions=[led])
            return SimpleNamespace(topics=[topic], cluster_id="c")
        writer = SimpleNamespace(
            producer_id=7, producer_epoch=1, current_txn_start_offset=4, last_sequence=0, coordinator_epoch=0
        )
        code = 0 if broker == self.leader else 6
        found = SimpleNamespace(partition_index=0, error_code=code, active_producers=[] if code else [writer])
        return SimpleNamespace(topics=[SimpleNamespace(name="rows", partitions=[found])])


def test_questions_are_asked_side_by_side_and_a_leader_is_trusted_until_it_leads_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, place = Leaders(), ("rows", 0)
    made.steps = []
    monkeypatch.setattr("exactsink_kafka.channel.Channel", made)
    wire = Wire(KafkaOptions(bootstrap_servers="b:9092"), "me")

    def asked() -> tuple[Any, list[list[str]]]:
        made.steps.clear()
        _, cluster, writers = wire.ask(wire.about_topics(["rows"]), wire.about_cluster(), wire.about_writers([place]))
        assert cluster == "c"
        return [one.id for one in writers[place]], [*made.steps]

    both = ["Metadata", "Metadata"]
    assert asked() == ([7], [[*both, "Metadata"], ["DescribeProducers"]])
    assert asked() == ([7], [[*both, "DescribeProducers"]])
    made.leader = 2
    assert wire.open_now([place]) == {place: (OpenProducer(7, 1, 4, 0, 0),)}, "also where another try is not worth it"
    assert asked() == ([7], [[*both, "DescribeProducers"]])
    made.leader = -1
    assert wire.open_now([place]) == {}, "nobody leads it, and no one else is believed"
