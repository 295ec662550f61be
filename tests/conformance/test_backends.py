"""The kit on every target that the backends of this repository ship: what their `targets()` gives is tested."""

from __future__ import annotations

import pytest

from exactsink.testing import ConformanceSuite, ConformanceTarget
from exactsink_files.conformance import targets as files_targets
from exactsink_idempotent_upsert.conformance import targets as upsert_targets
from exactsink_kafka.conformance import targets_on as kafka_targets_on
from exactsink_postgres.conformance import targets_on
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]


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
    @pytest.fixture(params=list(kafka_targets_on("")))
    def target(self, request: pytest.FixtureRequest, kafka: Kafka) -> ConformanceTarget:
        return kafka_targets_on(kafka.bootstrap)[request.param]
