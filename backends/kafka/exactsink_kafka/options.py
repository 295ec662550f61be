"""The options of a sink that writes to Kafka, and the settings that they become for the two clients.

librdkafka writes rows. kafka-python queries the cluster and ends transactions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from exactsink.contract import BackendOptions
from exactsink.toolkit.local_paths import absolute_path

__all__ = [
    "FAST_SETTINGS",
    "KafkaOptions",
    "kafka_python_settings",
    "librdkafka_settings",
    "producer_settings",
    "slow_because",
]

_OURS: Mapping[str, str] = {
    "*acks": "a row is written when all in-sync replicas have it",
    "bootstrap.servers": "write bootstrap_servers",
    "client.id": "the broker's log names clients by it",
    "delivery.report.only.error": "a task counts its rows as they are delivered",
    "enable.gapless.guarantee": "a row that is not delivered fails its task",
    "enable.idempotence": "a repeated request must not double rows",
    "enable.ssl.certificate.verification": "rows go only to a broker with a trusted certificate",
    "max.in.flight*": "a repeated request must not double rows",
    "metadata.broker.list": "write bootstrap_servers",
    "partitioner": "equal keys go to the same partition as with other clients, and rows may name theirs",
    "plugin.library.paths": "a plugin may drop or change rows",
    "queuing.strategy": "rows keep their order",
    "*retries": "a row that is not delivered fails its task",
    "statistics.interval.ms": "nobody reads the reports, and they would pile up",
    "transaction.timeout.ms": "write transaction_timeout_seconds",
    "transactional.id": "each task attempt has its own",
    "security.*": "write security_protocol",
    "sasl.*": "write sasl_mechanism, sasl_username and sasl_password",
    "ssl[._]*": "write the sink's own options ssl_*",
    "test.*": "rows would not go to a real broker",
}
"""librdkafka's settings that users may not set, with the reason: the promise depends on it, or an option sets it."""

FAST_SETTINGS = (
    *("compression.type", "compression.codec", "compression.level", "batch.size", "message.max.bytes"),
    *("message.timeout.ms", "delivery.timeout.ms", "topic.metadata.propagation.max.ms"),
    *("linger.ms", "queue.buffering.max.ms", "queue.buffering.max.kbytes", "queue.buffering.max.messages"),
)
"""The settings in `producer` that the fast writer accepts. Any other chooses the plain writer. The fast writer has no
queue, so it only checks those of librdkafka's queue."""

_LIFETIMES = ("message.timeout.ms", "delivery.timeout.ms")
"""How long librdkafka tries to deliver a row: two names of one setting."""

_DEFAULTS = {
    ("linger.ms", "queue.buffering.max.ms"): "20",
    ("batch.size",): "262144",
    ("queue.buffering.max.messages",): "100000",
    ("queue.buffering.max.kbytes",): "65536",  # librdkafka's own 1 GiB would fill an executor's memory overhead
    ("reconnect.backoff.ms",): "20",  # half of it is the pause before the first lasting connection; each try doubles it
}
"""Defaults of producers' settings, by the names under which the user may set another value."""

_SIZE, _ROOM = "message.max.bytes", "queue.buffering.max.kbytes"
_LARGEST, _ENDLESS = 1_000_000, 2**31  # librdkafka's own default; more than it accepts
_SOCKET_MS = 60_000  # without it, librdkafka waits for a lost answer until the transaction times out

_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LOGIN_OPTIONS = ("sasl_mechanism", "sasl_username", "sasl_password")
_TLS_OPTIONS = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "ssl_key_password")
_CONNECTION = ("bootstrap_servers", "security_protocol", *_LOGIN_OPTIONS, *_TLS_OPTIONS)
_KAFKA_PYTHON = {
    "sasl_username": "sasl_plain_username",
    "sasl_password": "sasl_plain_password",
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "ssl_key_password": "ssl_password",
}
"""kafka-python's names of the connection's options, if they differ from librdkafka's names with underscores."""


class KafkaOptions(BackendOptions):
    """Options of a sink that writes rows as records.

    The rows have the columns of Spark's own Kafka sink: `key`, `value`, `topic`, `partition`, `headers`, `timestamp`.
    The options of the connection have librdkafka's names, with underscores, and hold for the driver and the tasks.
    """

    bootstrap_servers: str = Field(min_length=1, examples=["kafka-1:9092,kafka-2:9092"])
    """The brokers for the first connection: `host:port,host:port`."""
    topic: str | None = Field(default=None, min_length=1)
    """The topic of every row. If you leave it out, each row names its topic in the column `topic`."""
    value_format: Literal["columns", "json"] = "columns"
    """The value of a record: with `columns` the column `value`, with `json` the whole row as JSON."""
    key: tuple[str, ...] = ()
    """With JSON: the columns of the key. One column is the key as text; several are a JSON object."""
    on_schema_change: Literal["fail", "add_columns", "allow"] = "fail"
    """With JSON: the columns that an epoch may have. `fail`: the same as in the epoch before. `add_columns`: the same,
    and new ones. `allow`: any. exactsink refuses any other epoch before its first row."""
    epoch_header: str | None = Field(default=None, min_length=1, pattern=r"^[^\x00]+$")
    """The name of a header with the epoch's number as text. exactsink adds it after each record's own headers."""
    strategy: Literal["transactions"] = "transactions"
    """How exactsink commits an epoch: each task attempt writes in a transaction, which the driver commits."""
    writer: Literal["auto", "plain", "fast"] = "auto"
    """The writer of the tasks: `fast` makes record batches of whole Arrow batches, `plain` calls librdkafka for each
    row. `auto` is `fast`, unless rows name their own topics, or `producer` has a setting that only `plain` knows."""
    transaction_timeout_seconds: float = Field(default=900, ge=1, le=2_147_483)
    """How long the broker keeps an open transaction. Then the broker aborts it, and the job writes its rows again."""
    ids_per_participant: int = Field(default=4, ge=2, le=64)
    """Transactional ids for each partition: 3 sets of this number, used in turn."""
    producer: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    """librdkafka's settings for producers, for example `{"compression.type" = "zstd", "batch.size" = 500000}`."""
    mark_topic: str | None = None
    """The topic of the sink's mark. exactsink commits the mark as an offset of the group `exactsink.JOB.SINK` for
    partition 0 of this topic. If rows name their topics, only this option gives the sink a mark. Default: `topic`."""
    marks_may_expire: bool = False
    """Accept brokers that may forget the mark: their `offsets.retention.minutes` is less than `longest_pause`."""
    report_offsets_to: str | None = Field(default=None, min_length=1)
    """A consumer group (on the same cluster) for tools that show lag. exactsink commits the source's end offsets to it
    after every epoch, and never reads from it."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Whether to use TLS (`SSL`), and whether to log in (`SASL`)."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """The mechanism of the login."""
    sasl_username: str | None = None
    """The user name of the login."""
    sasl_password: SecretStr | None = None
    """The password of the login, better as `${KAFKA_PASSWORD}`."""
    ssl_ca_location: str | None = None
    """A PEM file of certificates to trust, on the driver and on every executor. A relative path begins at the job
    file's folder, also in the options below. Default: the system's certificates."""
    ssl_certificate_location: str | None = None
    """A PEM file with the client's certificate, if brokers require one."""
    ssl_key_location: str | None = None
    """A PEM file with the key of that certificate."""
    ssl_key_password: SecretStr | None = None
    """The password of that key."""
    ssl_check_hostname: bool = True
    """Refuse a broker if its certificate is for another host name."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _reachable(cls, servers: str) -> str:
        """Check each host and port, and write the list as both clients read it."""
        listed = [server.strip() for server in servers.split(",")]
        for server in listed:
            found = _SERVER.fullmatch(server)
            if found is None or not 0 < int(found["port"]) < 2**16:
                raise ValueError("not a list of host:port: write kafka-1:9092,kafka-2:9092")
        return ",".join(dict.fromkeys(listed))

    @field_validator("ssl_ca_location", "ssl_certificate_location", "ssl_key_location")
    @classmethod
    def _from_the_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else absolute_path(path, info.context)

    @field_validator("topic", "mark_topic")
    @classmethod
    def _named(cls, topic: str | None) -> str | None:
        if topic is None:
            return None
        if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
            raise ValueError("not a topic name: up to 249 letters, digits, dots, underscores and hyphens")
        if topic.startswith("__"):
            raise ValueError(f"{topic}: names that begin with __ are Kafka's own")
        return topic

    @model_validator(mode="after")
    def _fitting(self) -> KafkaOptions:
        """Refuse settings that would break the promise, keys without JSON, and an incomplete login."""
        self._check_producer()
        if self.key and self.value_format != "json":
            raise ValueError('key: only with value_format = "json"; rows of columns have a column `key`')
        if self.value_format == "json" and self.topic is None:
            raise ValueError('topic: needed with value_format = "json"')
        if self.writer == "fast" and (why := slow_because(self)):
            raise ValueError(f'writer = "fast": {why}: set writer = "auto"')
        self._check_login()
        return self

    def _check_producer(self) -> None:
        for name in sorted(self.producer):
            if why := next((why for pattern, why in _OURS.items() if fnmatchcase(name, pattern)), None):
                raise ValueError(f"producer: {name}: exactsink sets it, remove it ({why})")
            if name.endswith("_cb") or name == "logger":
                raise ValueError(f"producer: {name}: takes a function, which a config can't hold")
            if name in _LIFETIMES:
                self._check_lifetime(name, self.producer[name])

    def _check_lifetime(self, name: str, given: str | float | bool) -> None:
        """Refuse to try a row for longer than its transaction can stay open: the task would notice too late."""
        try:
            milliseconds = float(given)
        except ValueError:
            raise ValueError(f"producer: {name}: not a number of milliseconds") from None
        if not 0 < milliseconds <= self.transaction_timeout_seconds * 1000:
            raise ValueError(
                f"producer: {name} is {milliseconds:.15g}, write more than 0 (0 means no limit), and at most "
                f"transaction_timeout_seconds, which is {self.transaction_timeout_seconds:g}"
            )

    def _check_login(self) -> None:
        """Refuse an incomplete login, and options that would silently be unused."""
        wants = self.security_protocol.startswith("SASL")
        given = [getattr(self, name) for name in _LOGIN_OPTIONS]
        if wants and None in given:
            raise ValueError(f"{self.security_protocol} needs sasl_mechanism, sasl_username and sasl_password")
        if not wants and any(value is not None for value in given):
            raise ValueError(f"{', '.join(_LOGIN_OPTIONS)}: only with security_protocol = SASL_SSL or SASL_PLAINTEXT")
        if self.sasl_username == "" or self.sasl_password == SecretStr(""):
            raise ValueError("sasl_username, sasl_password: empty")
        if not self.security_protocol.endswith("SSL"):
            unused = [name for name in _TLS_OPTIONS if getattr(self, name) is not None]
            unused += [] if self.ssl_check_hostname else ["ssl_check_hostname"]
            if unused:
                raise ValueError(f"{', '.join(unused)}: only with SSL or SASL_SSL")
        if (self.ssl_certificate_location is None) != (self.ssl_key_location is None):
            raise ValueError("ssl_certificate_location and ssl_key_location: both or none (they may name one file)")
        if self.ssl_key_password is not None and self.ssl_key_location is None:
            raise ValueError("ssl_key_password: only with ssl_key_location")

    @property
    def marked_topic(self) -> str | None:
        """Return the topic of the sink's mark; None if the sink has no mark."""
        return self.mark_topic or self.topic

    @property
    def record_limit(self) -> tuple[int, str]:
        """Return the largest record that producers accept (bytes, as librdkafka counts), and the setting of that limit.

        A record larger than the queue would wait for room until its transaction has timed out.
        """
        size, room = (_number(self.producer.get(name, most)) for name, most in ((_SIZE, _LARGEST), (_ROOM, _ENDLESS)))
        return min((size, _SIZE), (room * 1024, _ROOM))

    @property
    def largest_row(self) -> int:
        """Return the most bytes of a row's key, value and headers: librdkafka adds 36 before it compares."""
        return self.record_limit[0] - 36

    @property
    def commit_seconds(self) -> float:
        """Return how many seconds a commit may take: 60, or a quarter of the transaction's time-out if that is less."""
        return min(60.0, self.transaction_timeout_seconds / 4)


def _number(given: str | float | bool) -> int:
    """Read a setting. If it is not a number, librdkafka refuses it later."""
    return int(given) if str(given).isdecimal() else _ENDLESS


def slow_because(options: KafkaOptions) -> str | None:
    """Return why these options need the plain writer; None if they don't."""
    if options.topic is None:
        return "the rows name their own topics"
    other = sorted(set(options.producer).difference(FAST_SETTINGS))
    return f"only librdkafka knows the setting {other[0]}" if other else None


def producer_settings(options: KafkaOptions, transactional_id: str, client_id: str) -> dict[str, str]:
    """Return a producer's settings for librdkafka as text, secrets included. Both writers take the same.

    The user's settings replace defaults for throughput; the settings that the promise depends on replace the user's.
    """
    timeout_ms = round(options.transaction_timeout_seconds * 1000)
    standard = {
        names[0]: value for names, value in _DEFAULTS.items() if not any(name in options.producer for name in names)
    }
    standard["socket.timeout.ms"] = str(min(_SOCKET_MS, timeout_ms))
    most, limited_by = options.record_limit
    if _ROOM in standard:
        standard[_ROOM] = str(max(int(standard[_ROOM]), -(-most // 1024)))
    ours = {_SIZE: str(most)} if limited_by == _ROOM else {}
    ours |= {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": str(timeout_ms),
        "enable.idempotence": "true",
        "partitioner": "murmur2_random",  # keys have the same partitions as with Java's producers and Spark's own sink
        "delivery.report.only.error": "true",
    }
    given = {**options.producer, **librdkafka_settings(options, client_id)}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    return {**standard, **texts, **ours}


def librdkafka_settings(options: KafkaOptions, client_id: str) -> dict[str, str]:
    """Return a connection's settings for librdkafka, secrets included: keep them in the process that connects."""
    settings = {name.replace("_", "."): _revealed(value) for name, value in _given(options).items()}
    if options.security_protocol.endswith("SSL"):
        settings.setdefault("ssl.ca.location", _system_certificates())
        settings["ssl.endpoint.identification.algorithm"] = "https" if options.ssl_check_hostname else "none"
    return {**settings, "client.id": client_id}


def kafka_python_settings(options: KafkaOptions, client_id: str) -> dict[str, Any]:
    """Return a connection's settings for kafka-python. Secrets are included, but masked if it logs them."""
    settings: dict[str, Any] = {
        _KAFKA_PYTHON.get(name, name): value if isinstance(value, str) else _Hidden(_revealed(value))
        for name, value in _given(options).items()
    }
    settings["bootstrap_servers"] = options.bootstrap_servers.split(",")
    if options.security_protocol.endswith("SSL"):
        settings.setdefault("ssl_password", "")  # with None, a prompt would appear at the terminal
        settings["ssl_check_hostname"] = options.ssl_check_hostname
    return {**settings, "client_id": client_id}


def _given(options: KafkaOptions) -> Mapping[str, str | SecretStr]:
    """Return the options of the connection that are set."""
    values = {name: getattr(options, name) for name in _CONNECTION}
    return {name: value for name, value in values.items() if value is not None}


class _Hidden(str):
    """A secret with a masked repr, because kafka-python logs all its settings at level DEBUG."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"


def _revealed(value: str | SecretStr) -> str:
    return value if isinstance(value, str) else value.get_secret_value()


def _system_certificates() -> str:
    """Return where librdkafka finds the system's certificates: as in Python, the environment comes first.

    The OpenSSL in confluent-kafka's wheels reads no variable by itself. `probe` tries the folders of usual systems.
    """
    return os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR") or "probe"
