"""Errors of Kafka's and of kafka-python's as ours: what happened, why, and the next command."""

from __future__ import annotations

from kafka.errors import IncompatibleBrokerVersion, KafkaError, KafkaTimeoutError, for_code

from exactsink.contract import ExactsinkError, Fatal, Retryable
from exactsink_kafka.clients import Connection
from exactsink_kafka.wire.channel import is_refusal

__all__ = ["NOT_AUTHORIZED", "explained", "named", "refused_id", "refused_topic"]

NOT_AUTHORIZED = frozenset({29, 31, 53, 58, 65})


def named(code: int) -> str:
    """Name a broker's error code, with its number: `INVALID_TXN_STATE (48)`."""
    kind = for_code(code)
    name = getattr(kind, "message", None) if kind.errno == code else None
    return f"{name or 'error'} ({code})"


def explained(doing: str, error: Exception, connection: Connection) -> ExactsinkError:
    """Return what failed. Retryable, save where trying again can't help."""
    cause = error.__cause__ or error
    why = str(cause) if isinstance(cause, KafkaError) else f"{type(cause).__name__}: {cause}"
    what = f"{doing}: Kafka at {connection.servers} did not answer"
    if isinstance(error, IncompatibleBrokerVersion):
        return Fatal(
            f"{doing}: Kafka at {connection.servers} is too old",
            why=str(error),
            next="use brokers of Apache Kafka 4.0 or newer",
        )
    if is_refusal(error):
        return Fatal(
            f"{doing}: Kafka at {connection.servers} refused the connection",
            why=why,
            next="set security_protocol, sasl_* and ssl_* to what the listener at bootstrap_servers takes",
        )
    if isinstance(error, KafkaTimeoutError) and error.__cause__ is not None:
        why = f"{error}; {why}"
    return Retryable(
        what, why=why, next="see that its brokers run and that bootstrap_servers names them; then start the job again"
    )


def refused_id(doing: str, id: str, code: int, connection: Connection) -> Fatal:
    """Return which permission on transactional ids is missing."""
    return Fatal(
        f"{doing}: may not use transactional id {id}",
        why=named(code),
        next=f"{_acls(connection)} --operation Write --operation Describe --transactional-id "
        f"{id.rsplit('.', 2)[0]}. --resource-pattern-type prefixed",
    )


def refused_topic(doing: str, topic: str, code: int, connection: Connection) -> Fatal:
    """Return which permission on a topic is missing."""
    return Fatal(
        f"{doing}: may not read what became of the rows in topic {topic}",
        why=named(code),
        next=f"{_acls(connection)} --operation Read --operation Write --operation Describe --topic {topic}",
    )


def _acls(connection: Connection) -> str:
    who = connection.username or "..."
    return f"kafka-acls.sh --bootstrap-server {connection.servers} --add --allow-principal User:{who}"
