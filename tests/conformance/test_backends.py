"""The kit on every target that the backends of this repository ship, and on a reference store that has every hook."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, ConformanceSuite, ConformanceTarget, Runner
from exactsink.testing.scenarios import matrix
from exactsink_delta.conformance import targets as delta_targets
from exactsink_files.conformance import targets as files_targets
from exactsink_iceberg.conformance import targets as iceberg_targets
from exactsink_idempotent_upsert.conformance import mysql_targets as mysql_targets_on
from exactsink_idempotent_upsert.conformance import targets as upsert_targets
from exactsink_idempotent_upsert.postgres.targets import kit_targets as upsert_targets_on
from exactsink_kafka.conformance import targets_on as kafka_targets_on
from exactsink_postgres.conformance import targets_on
from tests.conformance.duckdb_target import DuckDBTarget
from tests.conformance.reference_store import ReferenceTarget
from tests.servers.kafka import Kafka
from tests.servers.mariadb import MariaDB
from tests.servers.pgbouncer import PgBouncer, own_pgbouncer
from tests.servers.postgres import Postgres

_OF_MATRIX = {scenario.name for scenario in matrix.SCENARIOS}
_DRIVERS_POINTS = ("recommit", "sweep", "open_epoch", "decide", "commit", "complete", "return")
_SAME_TO_A_BACKEND = {f"{fault}-before-{point}" for fault in ("killed", "stalled") for point in _DRIVERS_POINTS}
_SAME_TO_A_BACKEND |= {
    f"{fault}-{point}"
    for fault in ("killed", "stalled")
    for point in ("before-claim", "before-pre_commit", "after-vote")
}
"""Only reads come between these and a point beside them, at which the same process is killed or stalled."""

_OF_BACKENDS = SCENARIOS.keys() - _SAME_TO_A_BACKEND - {"assessed-inside-commit", "assessed-beside-commit"}
_OF_BACKENDS -= {"quarantine-replayed"}  # what it asks of a validator is asked by "judged-again", too
_OF_MECHANISMS = _OF_BACKENDS - _OF_MATRIX - {"two-jobs-in-turn"} | {
    *("killed-after-write", "killed-after-pre_commit", "killed-after-open_epoch"),
    *("killed-after-decide", "killed-after-commit", "stalled-after-write", "stalled-after-decide"),
}
"""Of the matrix a point for each of its defects (`defects.py`), and two stalls; all of them are played on files."""
_OF_APPLIERS = {
    *("many-rows", "undecided-invisible", "bad-rows-apart", "commits-at-once", "applied-late", "commit-replayed"),
    *("killed-after-pre_commit", "killed-inside-commit", "stalled-inside-commit", "killed-inside-sweep"),
    *("one-vote-lost", "unknown-after-commit", "loser-swept", "previous-release", "foreign-untouched"),
    *("two-jobs-interleaved", "births-at-once", "second-journal", "marks-trimmed"),
}
"""What a target's own part of the roads does: all points are played on files."""
_OF_SHARED_MARKS = {"births-at-once", "second-journal"}
"""One module has the marks of both strategies: they are played on the first."""
_OF_TABLES = {
    *("killed-inside-commit", "stalled-inside-commit", "commits-at-once", "commit-replayed", "second-journal"),
    *("one-vote-lost", "loser-swept", "undecided-invisible", "births-at-once", "unknown-after-commit"),
    "bad-rows-apart",
}
_TABLES = ["partitioned", pytest.param("table", marks=pytest.mark.proof)]
_OF_FORMATS = {"empty-epoch", "many-rows", "order-kept", "undecided-invisible", "previous-release"}
_OF_WRITERS = {
    *("killed-after-write", "stalled-after-write", "killed-after-pre_commit"),
    *("empty-epoch", "many-rows", "order-kept", "one-vote-lost", "loser-swept"),
}
_OF_SERVERS = {"killed-after-pre_commit", "killed-inside-commit", "births-at-once"}


def chosen(names: Collection[str]) -> Callable[..., None]:
    """Return the kit's test: these scenarios for every change, all others for `make proof`."""
    params = [pytest.param(name, marks=() if name in names else pytest.mark.proof) for name in SCENARIOS]

    @pytest.mark.parametrize("scenario", params)
    def test_conformance(
        self: ConformanceSuite, scenario: str, target: ConformanceTarget, folder: Path, runner: Runner
    ) -> None:
        ConformanceSuite.test_conformance(self, scenario, target, folder, runner)

    return test_conformance


class OnPlace(ConformanceSuite):
    @pytest.fixture
    def runner(self, place: tuple[str, Runner]) -> Runner:
        return place[1]


class TestReferenceStore(ConformanceSuite):
    """The store in which `test_sabotage` plants defects. Without one it passes: here a scenario of each kind."""

    test_conformance = chosen(
        {"one-moment", "many-rows", "assessed-inside-commit", "unknown-after-commit", "mark-kept"}
    )

    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return ReferenceTarget()


class TestFiles(ConformanceSuite):
    """Each point of the matrix."""

    test_conformance = chosen(_OF_BACKENDS | {"assessed-inside-commit", "assessed-beside-commit"})

    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return files_targets()["parquet"]


class TestDelta(ConformanceSuite):
    """One entry of a log for all participants: what is its own beside files."""

    test_conformance = chosen(_OF_TABLES)

    @pytest.fixture(params=_TABLES)
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        return delta_targets()[request.param]


class TestIceberg(ConformanceSuite):
    """One snapshot for all participants, put there by the catalog."""

    test_conformance = chosen({"stalled-inside-commit", "commits-at-once", "one-vote-lost", "bad-rows-apart"})

    @pytest.fixture(params=_TABLES)
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        return iceberg_targets()[request.param]


class TestStagedUpsert(ConformanceSuite):
    test_conformance = chosen(_OF_APPLIERS)

    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return upsert_targets()["staged"]


class TestDirectUpsert(ConformanceSuite):
    test_conformance = chosen(_OF_APPLIERS - _OF_SHARED_MARKS)

    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return upsert_targets()["direct"]


class TestMariaDB(ConformanceSuite):
    """The strategies are SQLite's, too: for every change, what a server does when a process dies in its transaction."""

    test_conformance = chosen({*_OF_SERVERS, "one-vote-lost"} - {"births-at-once"})

    @pytest.fixture(params=list(mysql_targets_on("")))
    def target(self, request: pytest.FixtureRequest, mariadb: MariaDB) -> ConformanceTarget:
        return mysql_targets_on(mariadb.url("mysql"))[request.param]


class TestDuckDB(ConformanceSuite):
    """The route of portable SQL: its marker is compared and replaced, without a lock."""

    test_conformance = chosen({"killed-inside-commit"})

    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return DuckDBTarget()


class TestPostgres(ConformanceSuite):
    test_conformance = chosen(_OF_MECHANISMS)

    @pytest.fixture
    def target(self, postgres: Postgres) -> ConformanceTarget:
        return targets_on(postgres.conninfo())["two_phase"]


class TestPostgresStaged(ConformanceSuite):
    test_conformance = chosen(_OF_APPLIERS - _OF_SHARED_MARKS)

    @pytest.fixture
    def target(self, postgres: Postgres) -> ConformanceTarget:
        return targets_on(postgres.conninfo())["staged"]


@pytest.fixture(scope="module", params=["session", "transaction"])
def pooler(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[PgBouncer]:
    with own_pgbouncer(postgres, request.param) as pooler:
        yield pooler


class TestPostgresBehindAPooler(ConformanceSuite):
    """Backend and kit reach the server through PgBouncer, in both modes that take transactions."""

    test_conformance = chosen({"killed-after-pre_commit"})

    @pytest.fixture(params=[*targets_on(""), "postgres_direct"])
    def target(self, request: pytest.FixtureRequest, pooler: PgBouncer) -> ConformanceTarget:
        return {**targets_on(pooler.conninfo()), **upsert_targets_on(pooler.conninfo())}[request.param]


class TestUpsertsIntoPostgres(ConformanceSuite):
    """Most is the `postgres` backend's; here what an upsert applies, and the votes that are kept beside tasks' rows."""

    test_conformance = chosen({*_OF_SERVERS, "one-vote-lost", "loser-swept", "commit-replayed", "undecided-invisible"})

    @pytest.fixture(params=["postgres_staged", "postgres_direct"])
    def target(self, request: pytest.FixtureRequest, postgres: Postgres) -> ConformanceTarget:
        return upsert_targets_on(postgres.conninfo())[request.param]


class TestKafka(ConformanceSuite):
    test_conformance = chosen(_OF_MECHANISMS)

    @pytest.fixture
    def target(self, kafka: Kafka) -> ConformanceTarget:
        return kafka_targets_on(kafka.bootstrap)["fast"]


class TestOtherFormats(ConformanceSuite):
    """What is another than with Parquet: how rows become files."""

    test_conformance = chosen(_OF_FORMATS)

    @pytest.fixture(params=["json", "csv"])
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        return files_targets()[request.param]


class TestPlainWriter(ConformanceSuite):
    """What tasks do, once more with Kafka's other writer; a driver's part is the same."""

    test_conformance = chosen(_OF_WRITERS)

    @pytest.fixture
    def target(self, kafka: Kafka) -> ConformanceTarget:
        return kafka_targets_on(kafka.bootstrap)["plain"]
