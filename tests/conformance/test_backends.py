"""The kit on every target that the backends of this repository ship: what their `targets()` gives is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, ConformanceSuite, ConformanceTarget, Runner
from exactsink_files.conformance import targets as files_targets
from exactsink_idempotent_upsert.conformance import targets as upsert_targets
from exactsink_kafka.conformance import targets_on as kafka_targets_on
from exactsink_postgres.conformance import targets_on
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]

WRITERS_SCENARIOS = [
    *(name for name in SCENARIOS if name.endswith(("-write", "-pre_commit"))),
    *("empty-epoch", "many-rows", "order-kept", "undecided-invisible", "other-process", "commit-replayed"),
    *("one-vote-lost", "loser-swept", "previous-release", "two-jobs-interleaved"),
]


class TestFiles(ConformanceSuite):
    @pytest.fixture(params=list(files_targets()))
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        return files_targets()[request.param]


class TestIdempotentUpsert(ConformanceSuite):
    @pytest.fixture(params=list(upsert_targets()))
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        return upsert_targets()[request.param]


class TestPostgres(ConformanceSuite):
    @pytest.fixture(params=list(targets_on("")))
    def target(self, request: pytest.FixtureRequest, postgres: Postgres) -> ConformanceTarget:
        return targets_on(postgres.conninfo())[request.param]


class TestKafka(ConformanceSuite):
    @pytest.fixture
    def target(self, kafka: Kafka) -> ConformanceTarget:
        return kafka_targets_on(kafka.bootstrap)["fast"]


class TestKafkaPlainWriter(ConformanceSuite):
    """What tasks do, once more with the other writer; drivers don't see which of them wrote."""

    @pytest.fixture
    def target(self, kafka: Kafka) -> ConformanceTarget:
        return kafka_targets_on(kafka.bootstrap)["plain"]

    @pytest.mark.parametrize("scenario", WRITERS_SCENARIOS)
    def test_conformance(self, scenario: str, target: ConformanceTarget, folder: Path, runner: Runner) -> None:
        super().test_conformance(scenario, target, folder, runner)
