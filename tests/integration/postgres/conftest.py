"""Databases, sinks and servers of these tests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink_postgres.own_tables import MARKS_TABLE
from tests.integration.postgres.driver_runs import Runs
from tests.integration.postgres.preflight_checks import SLOTS
from tests.integration.postgres.sinks import Branches, Staged, new_sink
from tests.servers.postgres import Postgres, PostgresServer, own_postgres

_COUNT = itertools.count()


@pytest.fixture(scope="session")
def two_phase_database(postgres: Postgres) -> str:
    """One database for this worker's tests, which know their own by their jobs."""
    return postgres.new_database("two_phase")


@pytest.fixture(scope="session")
def database(postgres: Postgres) -> str:
    """One database for this worker's staged sinks, each in a schema of its own."""
    return postgres.new_database("staged")


@pytest.fixture
def sink(database: str) -> Iterator[Staged]:
    """A job of the test's own, with a table t without a key."""
    with new_sink(database, "CREATE TABLE t (id bigint, v text)") as sink:
        yield sink


@pytest.fixture
def branches(two_phase_database: str) -> Iterator[Branches]:
    """A job of the test's own, without a table. What it leaves prepared is rolled back."""
    mine = Branches(two_phase_database, f"w{os.getpid()}-{next(_COUNT)}")  # names are the whole server's
    yield mine
    mine.clean()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of the module's own, which it may stop, fill and change."""
    with own_postgres({"max_prepared_transactions": "16"}) as server:
        yield server


@pytest.fixture(scope="module")
def shop() -> Iterator[PostgresServer]:
    """A server with few slots, for tests of preflight: databases `shop` and `other` with table flights, role writer."""
    with own_postgres({"max_prepared_transactions": str(SLOTS)}) as server:
        for database in ("shop", "other"):
            server.create_database(database)
            server.execute("CREATE TABLE flights (id bigint, kind text)", database)
            server.execute(f"CREATE TABLE exactsink_epochs {MARKS_TABLE}", database)
        server.execute("CREATE ROLE writer LOGIN")
        server.execute("GRANT SELECT, INSERT, DELETE ON exactsink_epochs TO writer", "shop")
        server.execute("GRANT INSERT ON flights TO writer", "shop")
        yield server


@pytest.fixture
def held(shop: PostgresServer) -> Iterator[None]:
    """Roll back what the test has prepared."""
    yield
    for gid, database in shop.execute("SELECT gid, database FROM pg_prepared_xacts"):
        shop.execute(f"ROLLBACK PREPARED '{gid}'", database)


@pytest.fixture(scope="session")
def run() -> Iterator[Runs]:
    with closing(Runs()) as runs:
        yield runs
