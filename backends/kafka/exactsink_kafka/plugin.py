"""Announce the backend `kafka` without importing it."""

from __future__ import annotations

from exactsink.contract import BackendSpec, hookimpl

__all__ = ["exactsink_backends"]


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    """Return the one backend of this package."""
    return [
        BackendSpec(
            "kafka",
            load="exactsink_kafka.backend:KafkaBackend",
            install="pip install 'exactsink[kafka]'",
            strategies={"transactions": "tasks write in transactions that stay open until the driver ends them"},
            conformance="exactsink_kafka.conformance:targets",
            bench="exactsink_kafka.bench:targets",
            drivers=("confluent_kafka", "kafka", "numpy", "crc32c"),
        )
    ]
