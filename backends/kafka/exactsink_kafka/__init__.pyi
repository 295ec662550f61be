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

    bootstrap_servers: Brokers to ask first: `host:port,host:port`.
    topic: The topic of every row. Without it each row says its own, in a column `topic`.
    value_format: What a record's value is: the column `value`, or the whole row as JSON.
    key: With JSON: the columns that make the key, as text where it is one, as a JSON object where there are
        several.
    on_schema_change: With JSON: which columns an epoch may have. `fail`: those of the epoch before.
        `add_columns`: those and more. `allow`: any. Other epochs are refused before their first row.
    epoch_header: A header that every record gets, after its own, with its epoch's number as text.
    strategy: How an epoch is committed: each task attempt writes in a transaction, which the driver ends.
    writer: Which writer tasks use: `fast` makes record batches of whole Arrow batches, `plain` calls librdkafka
        for each row. `auto` takes the fast one, unless rows name their own topics or `producer` has other
        settings of librdkafka.
    transaction_timeout_seconds: How long the broker keeps a transaction that nobody ends. Later its rows are
        lost, and are written again.
    ids_per_participant: How many transactional ids a round has for each partition of an epoch: see
        docs/how-to/write-to-kafka.md.
    producer: librdkafka's settings for the producers: `{"compression.type" = "zstd", "batch.size" = 500000}`.
    mark_topic: The topic whose partition 0 the sink's mark is kept for, as an offset of group
        `exactsink.JOB.SINK`: `topic` where left out. Rows that name their own topics have a mark with this option
        only.
    marks_may_expire: Accept brokers that forget the mark (offsets.retention.minutes) sooner than the job may
        stand still.
    report_offsets_to: A consumer group (on the same cluster) that the source's end offsets are committed to after
        every epoch, for tools that show lag. Nothing is ever read from there.
    security_protocol: Whether to use TLS (SSL), and whether to log in (SASL).
    sasl_mechanism: How to log in.
    sasl_username: Who logs in.
    sasl_password: Their password: `${KAFKA_PASSWORD}`.
    ssl_ca_location: A PEM file of certificates to trust, on the driver and on every executor; the system's own
        where left out. A relative path, here and below, is taken from the job file's folder.
    ssl_certificate_location: A PEM file with the client's certificate, where brokers ask for one.
    ssl_key_location: A PEM file with the key of that certificate.
    ssl_key_password: The password of that key.
    ssl_check_hostname: Refuse a broker whose certificate has another name.
    """
