"""Topics for a job's Kafka source and sink as fixtures: a test module names this one in its `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.kafka_flow import Flow, Input, fill, flow_of
from tests.servers.kafka import Kafka

__all__ = ["flow", "kafka_input"]


@pytest.fixture(scope="session")
def kafka_input(kafka: Kafka) -> Input:
    """A filled topic on the broker that all tests share."""
    return fill(kafka)


@pytest.fixture
def flow(kafka: Kafka, kafka_input: Input) -> Iterator[Flow]:
    """A test's own output topic there."""
    with flow_of(kafka, kafka_input) as made:
        yield made
