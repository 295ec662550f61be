"""What the tests of this folder share: a job of the test's own, by either writer or by none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kafka.attempts import Attempts, attempts_on
from tests.integration.kafka.marked import Driver, Site
from tests.integration.kafka.participants import Participants
from tests.servers.kafka import Kafka


@pytest.fixture(params=["plain", "fast"])
def attempts(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Attempts]:
    """A job of the test's own, for each writer. What it leaves open is aborted."""
    mine = attempts_on(kafka.bootstrap).with_(writer=request.param, topic=kafka.new_topic("writer", partitions=3))
    yield mine
    mine.end(*[one.transaction for one in mine.open_ids()], commit=False)


@pytest.fixture
def participants(kafka: Kafka) -> Iterator[Participants]:
    """A sink of the test's own, with a topic of two partitions."""
    with Participants.of(kafka) as made:
        yield made


@pytest.fixture
def site(kafka: Kafka) -> Site:
    """A sink of the test's own, with its mark."""
    return Site(kafka)


@pytest.fixture
def driver(site: Site, tmp_path: Path) -> Driver:
    """A job of it, with a journal."""
    return Driver(site, tmp_path / "journal")
