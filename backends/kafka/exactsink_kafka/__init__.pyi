# Made by docs/generate.py of the backend's options. Edit those, not this file.

import os
from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import Unpack

from exactsink.contract import SinkKeys

__all__ = ["Kafka"]

def Kafka(
    *,
    bootstrap_servers: str,
    topic: str | None = ...,
    value_format: Literal["columns", "json"] = ...,
    key: list[str] | tuple[str, ...] = ...,
    on_schema_change: Literal["fail", "add_columns", "allow"] = ...,
    epoch_header: str | None = ...,
    strategy: Literal["transactions"] = ...,
    writer: Literal["auto", "plain", "fast"] = ...,
    transaction_timeout_seconds: float = ...,
    ids_per_participant: int = ...,
    producer: Mapping[str, str | int | float | bool] = ...,
    mark_topic: str | None = ...,
    marks_may_expire: bool = ...,
    report_offsets_to: str | None = ...,
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = ...,
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = ...,
    sasl_username: str | None = ...,
    sasl_password: str | None = ...,
    ssl_ca_location: str | os.PathLike[str] | None = ...,
    ssl_certificate_location: str | os.PathLike[str] | None = ...,
    ssl_key_location: str | os.PathLike[str] | None = ...,
    ssl_key_password: str | None = ...,
    ssl_check_hostname: bool = ...,
    **of_every_sink: Unpack[SinkKeys],
) -> dict[str, Any]:
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that writes rows as records. Rows follow
    Spark's own Kafka sink: columns `key`, `value`, `topic`, `partition`, `headers`, and `timestamp`. The options
    of the connection have librdkafka's names, with underscores, and serve driver and tasks alike.

    bootstrap_servers: Brokers to contact first: `host:port,host:port`.
    topic: The topic of every row. Without it, each row names its topic in a column `topic`.
    value_format: The value of a record: the column `value` (`columns`), or the whole row as JSON (`json`).
    key: With JSON: the columns that make the key. One column becomes text, several become a JSON object.
    on_schema_change: With JSON: the columns that an epoch may have. `fail`: the columns of the epoch before.
        `add_columns`: these, and new ones. `allow`: any. exactsink refuses any other epoch before its first row.
    epoch_header: A header that every record gets, after its own headers. Its value is the epoch's number as text.
    strategy: How an epoch is committed: each task attempt writes in a transaction, which the driver ends.
    writer: The writer that tasks use. `fast` makes record batches from whole Arrow batches. `plain` calls
        librdkafka for each row. `auto` is `fast`, unless rows name their own topics, or `producer` has a setting
        that only librdkafka knows.
    transaction_timeout_seconds: How long the broker keeps a transaction that nobody ends. Then it aborts the
        transaction, and exactsink writes its rows again.
    ids_per_participant: How many transactional ids a round has for each partition of an epoch: see
        docs/how-to/write-to-kafka.md.
    producer: librdkafka's settings for the producers: `{"compression.type" = "zstd", "batch.size" = 500000}`.
    mark_topic: The topic of the sink's mark; `topic` if not set. The mark is the offset of group
        `exactsink.JOB.SINK` for its partition 0. If rows name their own topics, the sink has a mark only with
        this option.
    marks_may_expire: Accept brokers that forget the mark (offsets.retention.minutes) before the job's
        longest_pause is over.
    report_offsets_to: A consumer group on the same cluster. After every epoch, exactsink commits the source's end
        offsets to it, for tools that show lag. exactsink never reads them.
    security_protocol: Whether to use TLS (SSL), and whether to log in (SASL).
    sasl_mechanism: The mechanism of the login.
    sasl_username: The user of the login.
    sasl_password: The password of the login: `${KAFKA_PASSWORD}`.
    ssl_ca_location: A PEM file of certificates to trust, on the driver and on every executor; the system's own if
        not set. A relative path, here and below, begins at the job file's folder.
    ssl_certificate_location: A PEM file with the client's certificate, if brokers require one.
    ssl_key_location: A PEM file with the key of that certificate.
    ssl_key_password: The password of that key.
    ssl_check_hostname: Refuse a broker if its certificate is for another host name.
    """
