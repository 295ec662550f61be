"""Connections to a cluster. A request is repeated until its broker answers, also when connections break.

All private calls of kafka-python are here: its connections, and requests that none of its public methods makes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from kafka import KafkaAdminClient
from kafka.errors import IncompatibleBrokerVersion, KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from exactsink.contract import ExactsinkError, Fatal
from exactsink.toolkit.waiting import attempts_within
from exactsink_kafka import messages
from exactsink_kafka.errors import LEADER_NOT_AVAILABLE, MOVING, explained, is_refusal
from exactsink_kafka.options import KafkaOptions, kafka_python_settings

__all__ = ["Answers", "Asker", "Channel", "Question", "Sent", "Talk", "Unanswered", "grouped", "led"]

ANSWER_SECONDS = 10.0
"""How long one request waits for its answer, and one connection for its set-up, before another try."""

IDLE_SECONDS = 60.0
"""A connection that was idle for longer is replaced before its next use: a firewall may have dropped it silently."""

_ID = CoordinatorType.TRANSACTION
_FIRST, _LONGEST = 0.002, 0.25  # seconds between tries
_NOISY = "admin.client cluster net.connection net.manager net.selector net.transport protocol.parser"
_BYTES = "kafka.protocol.parser"  # logs the bytes that it sends, so all rows
_CHATTY = [f"kafka.{name}" for name in _NOISY.split()]


Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)
Read = TypeVar("Read")

Answers = dict[Any, tuple[int, Any]]
"""Error code and answer by key."""

Talk = Generator[Sequence[tuple[Any, "int | None"]], list[Any], Answers]
"""Yields requests, each with its broker (None: any); receives their answers in order; returns the `Answers`."""


@dataclass(frozen=True, slots=True, eq=False)
class Question(Generic[Read]):
    """A query about some keys. It is repeated for each key that was answered with a code in `again`.

    `once` makes one try for the keys that are left; `read` makes the result from all answers.
    """

    doing: str
    keys: Iterable[Any]
    again: frozenset[int]
    once: Callable[[Channel, Sequence[Any]], Talk]
    read: Callable[[Answers], Read]


def grouped(brokers: Mapping[Key, int]) -> dict[int, list[Key]]:
    """Group keys by their brokers."""
    keys = defaultdict(list)
    for key, broker in brokers.items():
        keys[broker].append(key)
    return keys


def led(metadata: Any, wanted: Iterable[tuple[str, int]]) -> tuple[Answers, dict[tuple[str, int], int]]:
    """Read partitions' leaders: return error codes of the partitions without one, and the leaders of the others."""
    codes = {topic.name: topic.error_code for topic in metadata.topics}
    known = messages.leaders(metadata)
    leaders = {one: known[one] for one in wanted if one in known}
    return {one: (codes.get(one[0]) or LEADER_NOT_AVAILABLE, None) for one in wanted if one not in leaders}, leaders


def _side_by_side(channel: Channel, asked: Mapping[Question[Any], Sequence[Any]]) -> dict[Question[Any], Answers]:
    """Send the requests of all questions together, step by step, until the last question is answered."""
    answers: dict[Question[Any], Answers] = {}
    talks = {question: question.once(channel, keys) for question, keys in asked.items()}
    given: dict[Question[Any], list[Any] | None] = dict.fromkeys(talks)
    while given:
        wanted = {}
        for question, known in given.items():
            try:
                wanted[question] = talks[question].send(known)  # type: ignore[arg-type]
            except StopIteration as done:
                answers[question] = done.value
                if lacking := set(asked[question]) - done.value.keys():
                    raise LookupError(f"a broker's answer lacks {', '.join(map(str, lacking))}") from None
        answered = iter(channel.ask([one for requests in wanted.values() for one in requests]) if wanted else ())
        given = {question: list(islice(answered, len(requests))) for question, requests in wanted.items()}
    return answers


class Asker:
    """Holds the channel to a cluster, and replaces it when it broke. Every request must be safe to repeat."""

    def __init__(self, options: KafkaOptions, client_id: str, patience_seconds: float) -> None:
        self.options = options
        self._client_id = client_id
        self._patience = patience_seconds
        self._channel: Channel | None = None
        self.known: dict[tuple[CoordinatorType, str], int] = {}
        """Coordinators as last found. `forget` removes a coordinator that has moved; `close` removes all."""
        self.leaders: dict[tuple[str, int], int] = {}
        """Leaders of partitions as last reported. `close` removes all."""

    def use(self, doing: str, call: Callable[[Channel], Answer], until: float | None = None) -> Answer:
        """Call with a connected channel; when it breaks, again with a new one, until a moment (monotonic seconds).

        Raises Retryable at that moment, and Fatal at once if another try can't help.
        """
        until = time.monotonic() + self._patience if until is None else until
        failed: ExactsinkError | None = None
        for _ in attempts_within(until - time.monotonic(), first_seconds=_FIRST, longest_seconds=_LONGEST):
            try:
                return call(self._connected(until))
            except (KafkaError, OSError, LookupError) as error:  # LookupError: an answer lacks a key
                old, channel = isinstance(error, IncompatibleBrokerVersion), self._channel
                upgrading = old and channel is not None and not channel.alike()
                self.close()
                failed = explained(doing, error, self.options, upgrading=upgrading)
                failed.__cause__ = error
            if isinstance(failed, Fatal):
                break
        assert failed is not None
        raise failed

    def persist(self, questions: Sequence[Question[Any]], seconds: float | None = None) -> list[Any]:
        """Send all questions together, and again for keys with a code in `again`, for the patience or `seconds`.

        Return the questions' results in order. A key that still has such a code at the end keeps its last code.
        """
        patience = self._patience if seconds is None else seconds
        until, left = time.monotonic() + patience, {q: list(dict.fromkeys(q.keys)) for q in questions}
        answers: dict[Question[Any], Answers] = {question: {} for question in questions}
        doing = " and ".join(question.doing for question in questions if left[question])
        for _ in attempts_within(patience, first_seconds=_FIRST, longest_seconds=_LONGEST) if doing else ():
            asked = {question: keys for question, keys in left.items() if keys}
            found = self.use(doing, lambda channel, asked=asked: _side_by_side(channel, asked), until)  # type: ignore[misc]
            for question, codes in found.items():
                answers[question] |= codes
                left[question] = [key for key in left[question] if codes[key][0] in question.again]
            if not any(left.values()):
                break  # at once: the iterator waits before its next step
        return [question.read(answers[question]) for question in questions]

    def locate(self, topic: str, seconds: float) -> None:
        """Query the brokers, and the leaders of a topic's partitions, for at most `seconds`."""

        def once(channel: Channel) -> None:
            channel.refresh()
            (answer,) = channel.ask([(messages.metadata_request(names=[topic]), None)])
            self.leaders = messages.leaders(answer)

        self.use("find leaders", once, time.monotonic() + seconds)

    def post(self, request: Any, broker: int, seconds: float) -> Sent:
        """Send a request to a broker once. The caller waits for its answer."""
        return self.use("write rows", lambda channel: channel.post(request, broker, seconds))

    def coordinators(
        self, channel: Channel, ids: Iterable[str], kind: CoordinatorType = _ID
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the coordinators of ids (brokers by id), and the error codes of ids that have none now."""
        unknown = [one for one in dict.fromkeys(ids) if (kind, one) not in self.known]
        codes = {}
        for one, code, broker in channel.find(unknown, kind) if unknown else ():
            if code == 0:
                self.known[kind, one] = broker
            else:
                codes[one] = code
        return {one: self.known[kind, one] for one in ids if one not in codes}, codes

    def forget(self, codes: Iterable[tuple[str, int]], kind: CoordinatorType = _ID) -> None:
        """Forget the coordinator of each id that was answered with a code in MOVING."""
        for one, code in codes:
            if code in MOVING:
                self.known.pop((kind, one), None)

    @property
    def session(self) -> object:
        """Return an object that is replaced each time that the connections break; None while there are none."""
        return self._channel

    def close(self) -> None:
        """Close the connections. Idempotent; the next use opens others."""
        channel, self._channel = self._channel, None
        self.known.clear()
        self.leaders.clear()
        if channel is not None:
            channel.close()

    def _connected(self, until: float) -> Channel:
        if self._channel is None:
            self._channel = Channel(self.options, self._client_id, max(until - time.monotonic(), 0.1))
        return self._channel


class Unanswered(Exception):
    """No answer came in time; one may still come."""


class Sent:
    """A request that was sent. Its answer comes later, or the request fails after its timeout."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self._answered = threading.Event()
        future.add_both(lambda _: self._answered.set())

    def done(self) -> bool:
        """Return whether the request was answered, or has failed."""
        return self._answered.is_set()

    def answer(self, seconds: float) -> Any:
        """Wait for the answer. Raises kafka-python's errors as they are, and Unanswered after `seconds`."""
        if not self._answered.wait(seconds):
            raise Unanswered
        if self._future.exception is not None:
            raise self._future.exception
        return self._future.value


class Channel:
    """Connections to the brokers of one cluster, with a thread of their own that ends with `close`.

    Raises kafka-python's errors as they are.
    """

    def __init__(self, options: KafkaOptions, client_id: str, seconds: float) -> None:
        """Connect within `seconds`."""
        answer = min(ANSWER_SECONDS, seconds)
        self._quiet = _Quiet(client_id)
        self._quiet.on()
        self._client: Any = None
        try:
            self.admin = KafkaAdminClient(
                **kafka_python_settings(options, client_id),
                kafka_client=partial(self._made, answer),
                bootstrap_timeout_ms=seconds * 1000,
                request_timeout_ms=answer * 1000,
                connections_max_idle_ms=IDLE_SECONDS * 1000,
                reconnect_backoff_max_ms=500,
                max_in_flight_requests_per_connection=10_000,
            )
        except BaseException as error:
            self._quiet.off()
            if self._client is None:
                raise
            self._client.close()  # a client that fails to connect leaves it open
            failure = self._client._manager.failure
            if failure is None or error is failure:
                raise
            raise error from failure  # the client's own error only says that time ran out
        self._manager: _Manager = self.admin._manager

    def refresh(self) -> tuple[str, tuple[int, ...]]:
        """Query the cluster's own id and its brokers' ids."""
        cluster = self._manager.cluster
        self._manager.run(cluster.refresh_metadata)
        return str(cluster.cluster_id), tuple(sorted(broker.node_id for broker in cluster.brokers()))

    def alike(self) -> bool:
        """Return whether all brokers accept the same requests; False also if one of them does not answer."""
        try:
            answers = self.ask([(messages.versions_request(), broker) for broker in self.refresh()[1]])
        except (KafkaError, OSError):
            return False
        return len({frozenset((a.api_key, a.min_version, a.max_version) for a in one.api_keys) for one in answers}) == 1

    def ask(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        """Send each request to its broker (None: to any), all before the first answer; return the answers in order."""
        answers: list[Any] = self._manager.run(self._ask, requests)
        return answers

    def post(self, request: Any, broker: int, seconds: float) -> Sent:
        """Send a request to a broker, after all earlier ones to it, without waiting for the answer."""
        return Sent(self._manager.call_soon(partial(self._manager.send, request, broker, seconds * 1000)))

    def find(self, ids: Iterable[str], kind: CoordinatorType) -> list[tuple[str, int, int]]:
        """Query the coordinators of transactional ids, or of groups: (id, error code, broker)."""
        request = FindCoordinatorRequest(key_type=kind.value, coordinator_keys=list(ids), min_version=4)
        (answer,) = self.ask([(request, None)])
        return [(found.key, found.error_code, found.node_id) for found in answer.coordinators]

    def close(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        self.admin.close()
        self._quiet.off()

    def _made(self, seconds: float, **configs: Any) -> Any:
        configs |= {"socket_connection_setup_timeout_ms": seconds * 1000}
        net = NetworkSelector(**configs)
        self._client = KafkaNetClient(net=net, manager=_Manager(net, **configs))
        return self._client

    async def _ask(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        futures = [self._manager.send(request, broker) for request, broker in requests]
        return [await future for future in futures]


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Keeps the error of the last connection that failed, and never repeats a login that was refused.

    Each connection queries the API versions of its own broker. (kafka-python would use the first broker's for all, but
    brokers differ while a cluster is upgraded.)
    """

    failure: Exception | None = None

    def get_connection(self, node_id: Any, *arguments: Any, **settings: Any) -> Any:
        if is_refusal(self.failure):
            raise self.failure
        if settings.get("timeout_ms"):  # else the first connection waits the whole time for one silent broker
            settings["timeout_ms"] = min(settings["timeout_ms"], self.config["socket_connection_setup_timeout_ms"])
        known = node_id in self._conns
        connection = super().get_connection(node_id, *arguments, **settings)
        if not known:
            connection.__class__ = _Connection
            connection.broker_version_data = None
            connection.init_future.add_errback(self._failed)
        return connection

    def least_loaded_node(self) -> Any:
        """Choose a broker for a request. If all known brokers throttle this client, choose a connected one."""
        found = super().least_loaded_node()
        return next((node for node, one in self._conns.items() if one.connected), None) if found is None else found

    def _failed(self, error: Exception) -> None:
        self.failure = error


class _Connection(KafkaConnection):  # type: ignore[misc]
    """Holds requests back while the broker throttles this client by a quota.

    (kafka-python refuses requests then, and a new connection would evade the quota.)
    """

    def send_request(self, request: Any, request_timeout_ms: float | None = None) -> Any:
        if not self.connected or "throttle" not in self.paused or self._reauth.is_reauthenticating:
            return super().send_request(request, request_timeout_ms)
        until = self._throttle_time + self._timeout_at(now=0.0, timeout_ms=request_timeout_ms)
        return self._send_request(request, timeout_at=until)


class _Quiet(logging.Filter):
    """Lowers all that kafka-python's thread for this client logs to DEBUG, because errors that matter are raised."""

    def __init__(self, client_id: str) -> None:
        super().__init__()
        self._thread = f"kafka-io-{client_id}"

    def on(self) -> None:
        for name in _CHATTY:
            logging.getLogger(name).addFilter(self)

    def off(self) -> None:
        for name in _CHATTY:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.threadName != self._thread or record.levelno <= logging.DEBUG:
            return record.name != _BYTES or record.threadName != self._thread
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
