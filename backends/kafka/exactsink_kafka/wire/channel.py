"""All private calls of kafka-python: its connections, and requests that none of its public methods makes."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeGuard

from kafka import KafkaAdminClient
from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    KafkaConfigurationError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from exactsink_kafka.clients import Connection

__all__ = ["ANSWER_SECONDS", "IDLE_SECONDS", "Channel", "is_refusal"]

ANSWER_SECONDS = 10.0
"""How long one request waits for its answer, and one connection for its set-up, before they are tried again."""

IDLE_SECONDS = 60.0
"""A connection that was idle for longer is replaced unasked: a firewall may have dropped it without a word."""

_REFUSALS = (
    SaslAuthenticationFailedError,
    AuthorizationError,
    IllegalSaslStateError,
    KafkaConfigurationError,
    UnsupportedSaslMechanismError,
    ssl.SSLError,
    FileNotFoundError,
)
_CHATTY = (
    "kafka.admin.client",
    "kafka.cluster",
    "kafka.net.connection",
    "kafka.net.manager",
    "kafka.net.selector",
    "kafka.net.transport",
    "kafka.protocol.parser",
)


def is_refusal(error: BaseException | None) -> TypeGuard[Exception]:
    """Return whether trying again can't help: a login, a certificate, or a file of ours that is not right."""
    while error is not None:
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return False
        if isinstance(error, _REFUSALS):
            return True
        error = error.__cause__ or error.__context__
    return False


class Channel:
    """Connections to the brokers of one cluster, with a thread of their own that ends with `close`.

    Raises kafka-python's errors as they are. `failure` is what the last connection that broke was broken by.
    """

    def __init__(self, connection: Connection, client_id: str, seconds: float) -> None:
        """Connect, within so many seconds."""
        answer = min(ANSWER_SECONDS, seconds)
        self._quiet = _Quiet(client_id)
        self._quiet.on()
        made = _Made()
        try:
            self.admin = KafkaAdminClient(
                **connection.kafka_python(client_id),
                kafka_client=partial(made.client, answer),
                bootstrap_timeout_ms=seconds * 1000,
                request_timeout_ms=answer * 1000,
                connections_max_idle_ms=IDLE_SECONDS * 1000,
                reconnect_backoff_max_ms=500,
                max_in_flight_requests_per_connection=10_000,
            )
        except BaseException as error:
            self._quiet.off()
            failure = made.close()
            if failure is None or error is failure:
                raise
            raise error from failure  # the client says no more than that time ran out
        self._made = made
        self._manager: _Manager = self.admin._manager

    def refresh(self) -> None:
        """Ask for the cluster's brokers."""
        self._manager.run(self._manager.cluster.refresh_metadata)

    @property
    def cluster_id(self) -> str:
        """The cluster's own id, as last refreshed."""
        return str(self._manager.cluster.cluster_id)

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers' ids, as last refreshed."""
        return tuple(sorted(broker.node_id for broker in self._manager.cluster.brokers()))

    def version(self, request: Any) -> int:
        """Return the version in which a request would be made."""
        return int(self._manager.broker_version_data.api_version(request))

    def ask(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        """Send each request to its broker (None: to any), all before the first answer; give the answers in order."""
        answers: list[Any] = self._manager.run(self._ask, requests)
        return answers

    def find(self, ids: Iterable[str]) -> list[tuple[str, int, int]]:
        """Ask for the coordinators of transactional ids: (id, error code, broker)."""
        request = FindCoordinatorRequest(
            key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=list(ids), min_version=4
        )
        (answer,) = self.ask([(request, None)])
        return [(found.key, found.error_code, found.node_id) for found in answer.coordinators]

    def close(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        self.admin.close()
        self._quiet.off()

    async def _ask(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        futures = [self._manager.send(request, broker) for request, broker in requests]
        return [await future for future in futures]


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Keeps what the last connection broke by, and tries no login twice that was refused."""

    failure: Exception | None = None

    def get_connection(self, node_id: Any, *arguments: Any, **settings: Any) -> Any:
        if is_refusal(self.failure):
            raise self.failure
        connection = super().get_connection(node_id, *arguments, **settings)
        connection.init_future.add_errback(self._failed)
        return connection

    def _failed(self, error: Exception) -> None:
        self.failure = error


class _Made:
    """Makes the admin client's parts, so that they can be closed when it fails to connect: it closes nothing then."""

    def __init__(self) -> None:
        self._client: Any = None

    def client(self, seconds: float, **configs: Any) -> Any:
        configs |= {"socket_connection_setup_timeout_ms": seconds * 1000}
        net = NetworkSelector(**configs)
        self._client = KafkaNetClient(net=net, manager=_Manager(net, **configs))
        return self._client

    def close(self) -> Exception | None:
        """Close, and give what the last connection broke by."""
        if self._client is None:
            return None
        self._client.close()
        failure: Exception | None = self._client._manager.failure
        return failure


class _Quiet(logging.Filter):
    """Makes debug messages of what kafka-python's thread for this client logs: errors that matter are raised."""

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
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
