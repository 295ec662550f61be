"""What the tests of preflight share: options for a broker, and the findings that it causes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from exactsink.contract import Finding, JobContext
from exactsink_kafka.group import MarkKeeper
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight import findings
from exactsink_kafka.wire import Wire
from tests.servers.kafka_secure import PASSWORDS, SecureKafka

ROWS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_PATIENCE = 60.0  # for brokers that are there


def context(job: str = "preflight-shop", **given: Any) -> JobContext:
    return JobContext(job, "orders", "", **given)


def secured(site: SecureKafka, user: str = "writer", **given: Any) -> dict[str, Any]:
    """Return the options of a user who logs in over TLS."""
    return {
        "bootstrap_servers": site.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_ca_location": str(site.ca),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": user,
        "sasl_password": PASSWORDS[user],
        **given,
    }


def check(
    options: dict[str, Any], ctx: JobContext | None = None, rows: pa.Schema = ROWS, patience: float = _PATIENCE
) -> list[Finding]:
    """Look as a job's start does; `patience` is in seconds, short for brokers that will never answer."""
    made = KafkaOptions.model_validate(options)
    wire = Wire(made, "exactsink tests", patience_seconds=patience)
    try:
        ctx = ctx or context()
        return [*findings(made, ctx, wire, rows, patience_seconds=patience), *MarkKeeper(made, ctx, wire).findings()]
    finally:
        wire.close()
