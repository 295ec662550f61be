"""librdkafka's settings of a producer: the user's, ours that the promise hangs on, and defaults for throughput."""

from __future__ import annotations

from exactsink_kafka.options import KafkaOptions

__all__ = ["settings"]

_DEFAULTS = {
    ("linger.ms", "queue.buffering.max.ms"): "20",
    ("batch.size",): "262144",
    ("queue.buffering.max.messages",): "100000",
    ("queue.buffering.max.kbytes",): "65536",  # librdkafka's own 1 GiB is an executor's whole overhead
    ("reconnect.backoff.ms",): "20",  # half of it is also the pause before the first lasting connection; it doubles
}
"""By the names that the user may have given instead."""

_SOCKET_MS = 60_000  # librdkafka would wait the transaction's whole time for an answer that got lost


def settings(options: KafkaOptions, transactional_id: str, client_id: str) -> dict[str, str]:
    """Return the settings, secrets with them, as text: both writers take the same."""
    timeout_ms = round(options.transaction_timeout_seconds * 1000)
    given = {name: _text(value) for name, value in options.producer.items()}
    standard = {names[0]: value for names, value in _DEFAULTS.items() if not any(name in given for name in names)}
    standard["socket.timeout.ms"] = str(min(_SOCKET_MS, timeout_ms))
    ours = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": str(timeout_ms),
        "enable.idempotence": "true",
        "partitioner": "murmur2_random",  # records land where Java's producers put them, so Spark's own sink, too
        "delivery.report.only.error": "true",
    }
    connection = {name: _text(value) for name, value in options.connection.librdkafka(client_id).items()}
    return {**standard, **given, **connection, **ours}


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
