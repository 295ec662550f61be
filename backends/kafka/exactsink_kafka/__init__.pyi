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
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that writes rows as records. The rows
    have the columns of Spark's own Kafka sink: `key`, `value`, `topic`, `partition`, `headers`, `timestamp`. The
    options of the connection have librdkafka's names, with underscores, and hold for the driver and the tasks.

    bootstrap_servers: The brokers for the first connection: `host:port,host:port`.
    topic: The topic of every row. If you leave it out, each row names its topic in the column `topic`.
    value_format: The value of a record: with `columns` the column `value`, with `json` the whole row as JSON.
    key: With JSON: the columns of the key. One column is the key as text; several are a JSON object.
    on_schema_change: With JSON: the columns that an epoch may have. `fail`: the same as in the epoch before.
        `add_columns`: the same, and new ones. `allow`: any. exactsink refuses any other epoch before its first
        row.
    epoch_header: The name of a header with the epoch's number as text. exactsink adds it after each record's own
        headers.
    strategy: How exactsink commits an epoch: each task attempt writes in a transaction, which the driver commits.
    writer: The writer of the tasks: `fast` makes record batches of whole Arrow batches, `plain` calls librdkafka
        for each row. `auto` is `fast`, unless rows name their own topics, or `producer` has a setting that only
        `plain` knows.
    transaction_timeout_seconds: How long the broker keeps an open transaction. Then the broker aborts it, and the
        job writes its rows again.
    ids_per_participant: Transactional ids for each partition: 3 sets of this number, used in turn.
    producer: librdkafka's settings for producers, for example `{"compression.type" = "zstd", "batch.size" =
        500000}`.
    mark_topic: The topic of the sink's mark. exactsink commits the mark as an offset of the group
        `exactsink.JOB.SINK` for partition 0 of this topic. If rows name their topics, only this option gives the
        sink a mark. Default: `topic`.
    marks_may_expire: Accept brokers that may forget the mark: their `offsets.retention.minutes` is less than
        `longest_pause`.
    report_offsets_to: A consumer group (on the same cluster) for tools that show lag. exactsink commits the
        source's end offsets to it after every epoch, and never reads from it.
    security_protocol: Whether to use TLS (`SSL`), and whether to log in (`SASL`).
    sasl_mechanism: The mechanism of the login.
    sasl_username: The user name of the login.
    sasl_password: The password of the login, better as `${KAFKA_PASSWORD}`.
    ssl_ca_location: A PEM file of certificates to trust, on the driver and on every executor. A relative path
        begins at the job file's folder, also in the options below. Default: the system's certificates.
    ssl_certificate_location: A PEM file with the client's certificate, if brokers require one.
    ssl_key_location: A PEM file with the key of that certificate.
    ssl_key_password: The password of that key.
    ssl_check_hostname: Refuse a broker if its certificate is for another host name.
    """
