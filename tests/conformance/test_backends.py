"""The kit on every target that the backends of this repository ship, and on a reference store that has every hook."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, ConformanceSuite, ConformanceTarget, Runner
from exactsink_files.conformance import targets as files_targets
from exactsink_idempotent_upsert.conformance import targets as upsert_targets
from exactsink_kafka.conformance import targets_on as kafka_targets_on
from exactsink_postgres.conformance import targets_on
from tests.conformance.reference_store import ReferenceTarget
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres

_OF_WRITERS = {
    *(name for name in SCENARIOS if name.endswith(("-write", "-pre_commit"))),
    *("empty-epoch", "many-rows", "order-kept", "undecided-invisible", "other-process", "commit-replayed"),
    *("one-vote-lost", "loser-swept", "previous-release", "two-jobs-interleaved"),
}


class TestReferenceStore(ConformanceSuite):
    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return ReferenceTarget()


class TestFiles(ConformanceSuite):
    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return files_targets()["parquet"]


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


class TestOtherWriters(ConformanceSuite):
    """What tasks do, once more with the other writers; a driver's part is the same, and is for `make proof`."""

    @pytest.fixture(params=["json", "csv", "plain"])
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        if request.param == "plain":
            return kafka_targets_on(request.getfixturevalue("kafka").bootstrap)["plain"]
        return files_targets()[request.param]

    @pytest.mark.parametrize(
        "scenario", [pytest.param(name, marks=() if name in _OF_WRITERS else pytest.mark.proof) for name in SCENARIOS]
    )
    def test_conformance(self, scenario: str, target: ConformanceTarget, folder: Path, runner: Runner) -> None:
        super().test_conformance(scenario, target, folder, runner)
